// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func TestPickVMIDUnique(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	env.host("r", "pve1", 16, 64)
	env.guest("r", "pve1", 1003, 1, 1)
	r := placement.Range{From: 1000, To: 1019, Exclude: []int{1007, 9999}}
	taken := map[int]bool{}
	for n := range 18 {
		uid := fmt.Sprint("claim-", n)
		vmid, err := placement.PickVMID(env.view(), "r", uid, r)
		g.Expect(err).NotTo(HaveOccurred())
		again, _ := placement.PickVMID(env.view(), "r", uid, r)
		g.Expect(again).To(Equal(vmid), "%v", uid)
		if taken[vmid] || vmid < r.From || vmid > r.To || vmid == 1003 || vmid == 1007 {
			t.Errorf("%s got %d, which is taken, excluded or out of range", uid, vmid)
		}
		taken[vmid] = true
		env.reserve(inventory.Reservation{ClaimUID: uid, Region: "r", Host: "pve1", VMID: vmid})
	}
	g.Expect(placement.PickVMID(env.view(), "r", "one-more", r)).Error().To(MatchError(placement.ErrRangeFull), "a full range gave")
	g.Expect(placement.PickVMID(env.view(), "q", "elsewhere", r)).Error().NotTo(HaveOccurred(), "another region has its own VMIDs")
}

func TestPickVMIDDistribution(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	view := newEnv().view()
	low := 0
	for n := range 1000 {
		vmid, err := placement.PickVMID(view, "r", fmt.Sprint("claim-", n), placement.Range{From: 20000, To: 29999})
		g.Expect(err).NotTo(HaveOccurred())
		if vmid < 25000 {
			low++
		}
	}
	g.Expect(low).To(BeNumerically(">=", 400))
	g.Expect(low).To(BeNumerically("<=", 600))
}

func TestPickVMIDInvalidRange(t *testing.T) {
	t.Parallel()
	for _, r := range []placement.Range{{}, {From: 99, To: 200}, {From: 300, To: 200}, {From: 100, To: 1_000_000_000}} {
		NewWithT(t).Expect(placement.PickVMID(newEnv().view(), "r", "a", r)).Error().To(HaveOccurred())
	}
}
