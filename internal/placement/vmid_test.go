// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func TestPickVMIDUnique(t *testing.T) {
	t.Parallel()
	env := newEnv()
	env.host("r", "pve1", 16, 64)
	env.guest("r", "pve1", 1003, 1, 1)
	r := placement.Range{From: 1000, To: 1019, Exclude: []int{1007, 9999}}
	taken := map[int]bool{}
	for n := range 18 {
		uid := fmt.Sprint("claim-", n)
		vmid, err := placement.PickVMID(env.view(), "r", uid, r)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := placement.PickVMID(env.view(), "r", uid, r); again != vmid {
			t.Errorf("%s got %d, then %d", uid, vmid, again)
		}
		if taken[vmid] || vmid < r.From || vmid > r.To || vmid == 1003 || vmid == 1007 {
			t.Errorf("%s got %d, which is taken, excluded or out of range", uid, vmid)
		}
		taken[vmid] = true
		env.reserve(inventory.Reservation{ClaimUID: uid, Region: "r", Host: "pve1", VMID: vmid})
	}
	if _, err := placement.PickVMID(env.view(), "r", "one-more", r); !errors.Is(err, placement.ErrRangeFull) {
		t.Errorf("a full range gave %v", err)
	}
	if _, err := placement.PickVMID(env.view(), "q", "elsewhere", r); err != nil {
		t.Errorf("another region has its own VMIDs: %v", err)
	}
}

func TestPickVMIDDistribution(t *testing.T) {
	t.Parallel()
	view := newEnv().view()
	low := 0
	for n := range 1000 {
		vmid, err := placement.PickVMID(view, "r", fmt.Sprint("claim-", n), placement.Range{From: 20000, To: 29999})
		if err != nil {
			t.Fatal(err)
		}
		if vmid < 25000 {
			low++
		}
	}
	if low < 400 || low > 600 {
		t.Errorf("%d of 1000 claims are in the lower half of the range", low)
	}
}

func TestPickVMIDInvalidRange(t *testing.T) {
	t.Parallel()
	for _, r := range []placement.Range{{}, {From: 99, To: 200}, {From: 300, To: 200}, {From: 100, To: 1_000_000_000}} {
		if _, err := placement.PickVMID(newEnv().view(), "r", "a", r); err == nil {
			t.Errorf("the range %+v was accepted", r)
		}
	}
}
