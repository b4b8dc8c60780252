// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// turns lets one at a time do what has to be done once, such as a download.
type turns struct {
	mu    sync.Mutex
	byKey map[string]chan struct{}
}

func newTurns() *turns { return &turns{byKey: map[string]chan struct{}{}} }

// take waits for the turn; the returned function passes it on.
func (t *turns) take(ctx context.Context, key string) (func(), error) {
	t.mu.Lock()
	turn, ok := t.byKey[key]
	if !ok {
		turn = make(chan struct{}, 1)
		t.byKey[key] = turn
	}
	t.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// vmids hands out VMIDs for Templates: the lowest that is free, as people like to see
// them. Who takes one at the same time is told by Proxmox, and gets the next.
type vmids struct {
	within placement.Range
	clock  clock.PassiveClock
	mu     sync.Mutex
	taken  map[string]map[int]hold // by region
}

// hold is a VMID that was handed out.
type hold struct {
	since time.Time
	by    HostKey
}

// vmidHold is how long a VMID that was handed out is kept from others: until the view
// surely shows what became of it.
const vmidHold = 2 * time.Minute

func newVMIDs(within placement.Range, c clock.PassiveClock) *vmids {
	return &vmids{within: within, clock: c, taken: map[string]map[int]hold{}}
}

func (v *vmids) pick(view inventory.View, spot HostKey) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	held := v.taken[spot.Region]
	if held == nil {
		held = map[int]hold{}
		v.taken[spot.Region] = held
	}
	now := v.clock.Now()
	for vmid := v.within.From; vmid <= v.within.To; vmid++ {
		if before, ok := held[vmid]; ok && now.Sub(before.since) < vmidHold {
			continue
		}
		if view.IsVMIDTaken(spot.Region, vmid) || slices.Contains(v.within.Exclude, vmid) {
			continue
		}
		held[vmid] = hold{now, spot}
		return vmid, nil
	}
	return 0, fmt.Errorf("no VMID from %d to %d is free for templates in region %s; raise --proxmox-template-vmid-max: %w", v.within.From, v.within.To, spot.Region, placement.ErrRangeFull)
}

// others tells whether a VMID was last handed out to another spot of this process.
func (v *vmids) others(vmid int, spot HostKey) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	held, ok := v.taken[spot.Region][vmid]
	return ok && held.by != spot
}
