// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Limits of VMIDs in Proxmox.
const (
	MinVMID = 100
	MaxVMID = 999_999_999
)

// ErrRangeFull is returned when every VMID of a range is in use.
var ErrRangeFull = errors.New("no free VMID")

// Range is a range of VMIDs, both ends included.
type Range struct {
	From, To int
	// Exclude lists VMIDs that are in use without being visible as a guest.
	Exclude []int
}

// Validate returns an error if the range is empty or outside the limits of Proxmox.
func (r Range) Validate() error {
	if r.From < MinVMID || r.To > MaxVMID || r.From > r.To {
		return fmt.Errorf("invalid VMID range %d-%d: must be within %d-%d", r.From, r.To, MinVMID, MaxVMID)
	}
	return nil
}

// Contains reports whether a VM of this controller may have the VMID.
func (r Range) Contains(vmid int) bool {
	return vmid >= r.From && vmid <= r.To && vmid != proxmox.RetainedVMID && !slices.Contains(r.Exclude, vmid)
}

// PickVMID returns a VMID for a Claim that is free in the view. The search starts at a
// hash of the UID, so a Claim gets the same VMID again, two controllers rarely pick the
// same one, and a VMID is not reused right after it was freed. The error wraps
// ErrRangeFull if no VMID is free.
func PickVMID(view inventory.View, region, claimUID string, r Range) (int, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	size := uint64(r.To - r.From + 1) //nolint:gosec // Validate ensures From <= To
	start := hash(region, claimUID) % size
	for step := range size {
		vmid := r.From + int((start+step)%size) //nolint:gosec // below size, which came from an int
		if r.Contains(vmid) && !view.IsVMIDTaken(region, vmid) {
			return vmid, nil
		}
	}
	return 0, fmt.Errorf("picking a VMID in region %s from %d-%d: %w", region, r.From, r.To, ErrRangeFull)
}
