// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestWithout(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const gib = int64(1) << 30
	vm := proxmox.GuestRow{VMID: 20000, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: 2, MemoryBytes: 4 * gib, DiskBytes: gib}
	other := vm
	other.VMID = 100
	s := inventory.NewSnapshot(inventory.PollResult{
		Region: "r", Taken: start, Resources: proxmox.Resources{Hosts: []proxmox.HostRow{host("pve1", 8, 32)}, Guests: []proxmox.GuestRow{vm, other}},
		ReportedAddresses: inventory.ReportedAddresses{Guests: map[int][]netip.Addr{20000: {addr("10.0.0.20")}}},
	}, nil, ownRange)
	v := viewOf(t, s, `{"r": {"pve1": {"reservedmemory": "2Gi"}}}`,
		inventory.Reservation{ClaimUID: "a", Region: "r", Host: "pve1", VMID: 20000, NodePool: "p", Amount: inventory.Amount{CPUs: 2, MemoryBytes: 4 * gib}, Fulfilled: true},
		inventory.Reservation{ClaimUID: "b", Region: "r", Host: "pve1", VMID: 20001, NodePool: "p", Amount: inventory.Amount{CPUs: 1, MemoryBytes: gib}},
	)
	free := func(v inventory.View) inventory.Amount {
		state, _ := v.Host("r", "pve1")
		return state.Free
	}
	for name, c := range map[string]struct {
		vmid int
		want inventory.Amount
	}{
		"VM":                  {20000, free(v).Plus(inventory.Amount{CPUs: 2, MemoryBytes: 4 * gib})},
		"VM_not_launched_yet": {20001, free(v).Plus(inventory.Amount{CPUs: 1, MemoryBytes: gib})},
		"unknown_VM":          {20002, free(v)},
	} {
		after := v.Without("r", c.vmid)
		g.Expect(free(after)).To(Equal(c.want), name)
		g.Expect(after.IsVMIDTaken("r", c.vmid)).To(BeFalse(), "%s: the VMID is taken", name)
	}
	if address := addr("10.0.0.20"); !v.Addresses().IsTaken(address) || v.Without("r", 20000).Addresses().IsTaken(address) {
		t.Error("the address must be taken only with the VM")
	}
	if !v.IsVMIDTaken("r", 20000) || len(v.Reservations) != 2 || len(s.Guests) != 2 {
		t.Error("the View was changed")
	}
}
