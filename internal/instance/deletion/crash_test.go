// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// The controller is killed during the launch, and the claim is deleted.
func TestDeleteAfterLaunchCrash(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Planned("recorded", w.NodeClass)
	requests := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	for _, point := range testenv.CrashPoints(requests) {
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			killed := w.StartProcess(testenv.NoPolling())
			claim := killed.Planned("pool-abc", w.NodeClass)
			err := killed.Instances.Launcher.Launch(testenv.KillAtRequest(w.T, w.Sim, point.Request, point.After), claim, w.NodeClass)
			w.EndCrash(err != nil)
			w.StartProcess().Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}

// The next controller completes a delete that was killed.
func TestDeleteCrash(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Launched("recorded", w.NodeClass)
	requests := w.RecordRequests(func() { p.Delete(claim) })
	for _, point := range testenv.CrashPoints(requests) {
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			killed := w.StartProcess(testenv.NoPolling())
			claim := killed.Launched("pool-abc", w.NodeClass)
			deleted, err := killed.Instances.Deleter.Delete(testenv.KillAtRequest(w.T, w.Sim, point.Request, point.After), claim)
			w.EndCrash(!deleted || err != nil)
			w.StartProcess().Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}
