// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// DieAt cuts a process off from Proxmox at its n-th call from now, before the call has
// an effect or just after, and ends the context that it works in.
func DieAt(t testing.TB, sim *pvesim.Simulator, n int, after bool) context.Context {
	t.Helper()
	faults := []pvesim.Fault{{Skip: n, DropBefore: true}}
	if after {
		// The second rule is not asked about the call that the first one takes.
		faults = []pvesim.Fault{{Skip: n, Count: 1, DropAfter: true}, {Skip: n, DropBefore: true}}
	}
	for _, fault := range faults {
		if _, err := sim.AddFault(fault); err != nil {
			t.Fatal(err)
		}
	}
	ctx, die := context.WithCancel(t.Context())
	go func() {
		defer die()
		for ctx.Err() == nil {
			for _, fault := range sim.Faults() {
				if fault.Hits > 0 {
					return
				}
			}
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(die)
	return ctx
}
