// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// vmidAllocator allocates VMIDs for Templates, the lowest free one first. Another
// client can take the same VMID: Proxmox then rejects the create, and the next VMID is
// tried.
type vmidAllocator struct {
	vmids     placement.Range
	clock     clock.PassiveClock
	mu        sync.Mutex
	allocated map[string]map[int]allocation // by region
}

// allocation records when a VMID was allocated, and for which Host.
type allocation struct {
	at  time.Time
	key HostKey
}

// allocationTTL is how long an allocated VMID is not allocated again. The inventory
// shows the VM before that.
const allocationTTL = 2 * time.Minute

func newVMIDAllocator(vmids placement.Range, c clock.PassiveClock) *vmidAllocator {
	return &vmidAllocator{vmids: vmids, clock: c, allocated: map[string]map[int]allocation{}}
}

// allocate returns the lowest free VMID. It returns placement.ErrRangeFull if there is
// none.
func (a *vmidAllocator) allocate(view inventory.View, key HostKey) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	allocated := a.allocated[key.Region]
	if allocated == nil {
		allocated = map[int]allocation{}
		a.allocated[key.Region] = allocated
	}
	now := a.clock.Now()
	for vmid := a.vmids.From; vmid <= a.vmids.To; vmid++ {
		if previous, ok := allocated[vmid]; ok && now.Sub(previous.at) < allocationTTL {
			continue
		}
		if view.IsVMIDTaken(key.Region, vmid) || slices.Contains(a.vmids.Exclude, vmid) {
			continue
		}
		allocated[vmid] = allocation{now, key}
		return vmid, nil
	}
	return 0, fmt.Errorf("no VMID from %d to %d is free for templates in region %s; raise --proxmox-template-vmid-max: %w", a.vmids.From, a.vmids.To, key.Region, placement.ErrRangeFull)
}

// isAllocated reports whether this process allocated a VMID recently.
func (a *vmidAllocator) isAllocated(region string, vmid int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	previous, ok := a.allocated[region][vmid]
	return ok && a.clock.Now().Sub(previous.at) < allocationTTL
}

// isAllocatedElsewhere reports whether this process last allocated a VMID for another
// Host or ProxmoxTemplate.
func (a *vmidAllocator) isAllocatedElsewhere(vmid int, key HostKey) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	previous, ok := a.allocated[key.Region][vmid]
	return ok && previous.key != key
}
