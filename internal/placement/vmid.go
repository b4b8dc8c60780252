// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Bounds that Proxmox sets to VMIDs.
const (
	MinVMID = 100
	MaxVMID = 999_999_999
)

// ErrRangeFull says that every VMID of the range is in use.
var ErrRangeFull = errors.New("no VMID is free")

// Range is where VMIDs are taken from, both ends included.
type Range struct {
	From, To int
	// Exclude lists VMIDs that others use without a guest to show for it.
	Exclude []int
}

// Validate tells what is wrong with the range.
func (r Range) Validate() error {
	if r.From < MinVMID || r.To > MaxVMID || r.From > r.To {
		return fmt.Errorf("checking the VMID range, found %d-%d, want a range within %d-%d", r.From, r.To, MinVMID, MaxVMID)
	}
	return nil
}

// PickVMID gives a Claim a VMID that the view shows free. The search starts at a
// hash of the UID, so that a Claim comes back to its VMID, two controllers seldom
// meet, and a VMID that was just freed is not the next one taken. The error wraps
// ErrRangeFull when there is none.
func PickVMID(view inventory.View, region, claimUID string, r Range) (int, error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	size := uint64(r.To - r.From + 1) //nolint:gosec // Validate holds From <= To
	start := hash(region, claimUID) % size
	for step := range size {
		vmid := r.From + int((start+step)%size) //nolint:gosec // below size, which came from an int
		if !view.IsVMIDTaken(region, vmid) && !slices.Contains(r.Exclude, vmid) {
			return vmid, nil
		}
	}
	return 0, fmt.Errorf("picking a VMID in region %s from %d-%d, %w", region, r.From, r.To, ErrRangeFull)
}
