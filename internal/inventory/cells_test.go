// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	allOf0 = "[0 1 2 3 4 5 6 7]"
	allOf1 = "[8 9 10 11 12 13 14 15]"
	// idle are two cells without guests, shared with a floating guest in both, bound with one in the second.
	idle   = "0: 8 32.0 " + allOf0 + "; 1: 8 32.0 " + allOf1
	shared = "0: 6 28.0 " + allOf0 + "; 1: 6 28.0 " + allOf1
	bound  = "0: 8 32.0 " + allOf0 + "; 1: 4 24.0 " + allOf1
)

func TestCellsGuests(t *testing.T) {
	t.Parallel()
	numa := []string{"numa", "1", "numa0", "cpus=0-3,hostnodes=1,memory=8192,policy=bind"}
	for name, test := range map[string]struct {
		fill func(*numaHost)
		want string
	}{
		"no_guests":                           {func(*numaHost) {}, idle},
		"bound_guest_counts_in_its_cell":      {func(h *numaHost) { h.guest(vm(100, "pve1", "running", 4, 8), numa...) }, bound},
		"bound_guest_stopped":                 {func(h *numaHost) { h.guest(vm(100, "pve1", "stopped", 4, 8), numa...) }, idle},
		"floating_guest_counts_in_every_cell": {func(h *numaHost) { h.guest(vm(100, "pve1", "running", 3, 8)) }, shared},
		"container_counts_in_every_cell":      {func(h *numaHost) { h.guests = append(h.guests, container(100, 4, 8)) }, shared},
		"numaN_without_numa":                  {func(h *numaHost) { h.guest(vm(100, "pve1", "running", 4, 8), numa[2:]...) }, shared},
		"interleaved_memory": {
			func(h *numaHost) {
				h.guest(vm(100, "pve1", "running", 4, 8), "numa", "1", "numa0", "cpus=0-3,hostnodes=0-1,memory=8192,policy=interleave")
			},
			shared,
		},
		"affinity_binds_CPUs_and_memory": {
			func(h *numaHost) { h.guest(vm(100, "pve1", "running", 2, 8), "affinity", "8-9") },
			"0: 8 32.0 " + allOf0 + "; 1: 6 24.0 [10 11 12 13 14 15]",
		},
		"affinity_of_stopped_guest_keeps_cores": {
			func(h *numaHost) { h.guest(vm(100, "pve1", "stopped", 2, 8), "affinity", "8-9") },
			"0: 8 32.0 " + allOf0 + "; 1: 8 32.0 [10 11 12 13 14 15]",
		},
		"topology_VM_of_upstream":              {func(h *numaHost) { h.guest(topologyVM(100), "affinity", "0-7,8-15") }, idle},
		"topology_VM_of_upstream_in_our_range": {func(h *numaHost) { h.guest(topologyVM(20001), "affinity", "0-7,8-15") }, idle},
		"topology_VM_of_upstream_started": {
			func(h *numaHost) {
				row := topologyVM(100)
				row.Status = "running"
				h.guest(row, "affinity", "0-7,8-15")
			},
			"0: 0 0.0 []; 1: 0 0.0 []",
		},
		"VM_with_its_name": {
			func(h *numaHost) {
				row := topologyVM(100)
				row.Tags = nil
				h.guest(row, "affinity", "8-9")
			},
			"0: 8 32.0 " + allOf0 + "; 1: 8 32.0 [10 11 12 13 14 15]",
		},
		"pinned_by_hookscript": {
			func(h *numaHost) {
				h.guest(vm(20001, "pve1", "running", 2, 8),
					"description", ownership.Mark{VMID: 20001, KubeCluster: "k", ClaimUID: "c", CPUs: "0-1", Pin: []int{0, 1}}.Notes("ours"))
			},
			"0: 6 24.0 [2 3 4 5 6 7]; 1: 8 32.0 " + allOf1,
		},
		"pinned_by_hookscript_but_copied": {
			func(h *numaHost) {
				h.guest(vm(20001, "pve1", "running", 2, 8),
					"description", ownership.Mark{VMID: 20002, KubeCluster: "k", ClaimUID: "c", CPUs: "0-1", Pin: []int{0, 1}}.Notes("ours"))
			},
			"0: 7 28.0 " + allOf0 + "; 1: 7 28.0 " + allOf1,
		},
		"slot_keeps_its_cores": {
			func(h *numaHost) {
				row := template(9100)
				row.Tags = []string{inventory.SlotTagPrefix + "ubuntu"}
				h.guest(row, "template", "1", "affinity", "0-3")
			},
			"0: 8 32.0 [4 5 6 7]; 1: 8 32.0 " + allOf1,
		},
		"template_that_is_not_a_slot": {func(h *numaHost) { h.guest(template(9100), "template", "1", "affinity", "0-3") }, idle},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := twoSockets()
			test.fill(h)
			NewWithT(t).Expect(describe(h.view(t).Cells("r", "pve1"))).To(Equal(test.want))
		})
	}
}

// topologyVM returns the VM that upstream's daemon creates.
func topologyVM(vmid int) proxmox.GuestRow {
	row := vm(vmid, "pve1", "stopped", 16, 64)
	row.Name, row.Tags = "node-capacity", []string{"karpenter"}
	return row
}

func reservation(vmid int, binding *inventory.Binding) inventory.Reservation {
	return inventory.Reservation{ClaimUID: "uid", Region: "r", Host: "pve1", VMID: vmid, Amount: amount(4, 8), Binding: binding}
}

func TestCellsReservations(t *testing.T) {
	t.Parallel()
	inCell := &inventory.Binding{Cells: []inventory.BoundCell{{ID: 1, VCPUs: 4, MemoryMiB: 8192}}}
	exclusive := &inventory.Binding{Cells: inCell.Cells, CPUs: cpuset.New(8, 9, 10, 11)}
	const exclusiveCells = "0: 8 32.0 " + allOf0 + "; 1: 4 24.0 [12 13 14 15]"
	for name, test := range map[string]struct {
		binding   *inventory.Binding
		fulfilled bool
		guest     func(*numaHost)
		want      string
	}{
		"VM_not_visible":                 {inCell, false, func(*numaHost) {}, bound},
		"exclusive_cores":                {exclusive, false, func(*numaHost) {}, exclusiveCells},
		"unconfigured_clone_counts_once": {exclusive, false, func(h *numaHost) { h.guest(vm(20001, "pve1", "stopped", 1, 1)) }, exclusiveCells},
		"configured_VM_counts_once": {
			exclusive, true, func(h *numaHost) {
				h.guest(vm(20001, "pve1", "running", 4, 8), "numa", "1", "numa0", "cpus=0-3,hostnodes=1,memory=8192,policy=bind", "affinity", "8-11")
			}, exclusiveCells,
		},
		"cores_stay_reserved_with_outdated_config": {exclusive, true, func(h *numaHost) { h.guest(vm(20001, "pve1", "running", 4, 8)) }, exclusiveCells},
		"migrated_VM_counts_on_its_host": {
			exclusive, true, func(h *numaHost) {
				moved := vm(20001, "pve2", "running", 4, 8)
				h.guest(moved, "affinity", "8-11")
			}, idle,
		},
		"clone_counts_on_its_target":  {exclusive, false, func(h *numaHost) { h.guest(vm(20001, "pve2", "stopped", 1, 1)) }, exclusiveCells},
		"without_binding_floats":      {nil, false, func(*numaHost) {}, shared},
		"without_binding_counts_once": {nil, false, func(h *numaHost) { h.guest(vm(20001, "pve1", "stopped", 2, 2)) }, shared},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := twoSockets()
			r := reservation(20001, test.binding)
			r.Fulfilled = test.fulfilled
			h.reservations["uid"] = r
			test.guest(h)
			NewWithT(t).Expect(describe(h.view(t).Cells("r", "pve1"))).To(Equal(test.want))
		})
	}
}

func TestCellsSlots(t *testing.T) {
	t.Parallel()
	slot := func(h *numaHost, vmid int, affinity string) {
		row := template(vmid)
		row.Tags = []string{"k8s", inventory.SlotTagPrefix + "ubuntu"}
		h.guest(row, "template", "1", "affinity", affinity, "hugepages", "1024")
	}
	for name, test := range map[string]struct {
		fill func(*numaHost)
		busy []bool
	}{
		"free": {func(*numaHost) {}, []bool{false, false}},
		"reserved": {func(h *numaHost) {
			h.reservations["uid"] = reservation(20001, &inventory.Binding{CPUs: cpuset.New(4, 5)})
		}, []bool{false, true}},
		"used_by_a_VM":                    {func(h *numaHost) { h.guest(vm(20001, "pve1", "running", 2, 2), "affinity", "0-3") }, []bool{true, false}},
		"used_by_a_VM_that_overlaps_both": {func(h *numaHost) { h.guest(vm(100, "pve1", "stopped", 2, 2), "affinity", "3-4") }, []bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := twoSockets()
			slot(h, 9101, "4-7")
			slot(h, 9100, "0-3")
			test.fill(h)
			slots := h.view(t).Cells("r", "pve1").Slots
			g := NewWithT(t)
			g.Expect(slots).To(HaveLen(2))
			g.Expect(slots[0]).To(And(HaveField("VMID", 9100), HaveField("CPUs.String()", "0-3"), HaveField("Hugepages", "1024")))
			g.Expect([]bool{slots[0].Busy, slots[1].Busy}).To(Equal(test.busy))
		})
	}
}

func TestParseSettingsInvalidCells(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		`{"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "6-9"}}}`: `field "nodes": found {"0": {"cpus": "0-7"}, "1": {"cpus": ..., want each CPU in one cell (cells 0 and 1 both have 6-7)`,
		`{"siblings": "twins"}`:                                   `field "siblings": found "twins", want "spread"`,
	} {
		_, err := inventory.ParseSettings([]byte(`{"r": {"pve1": ` + entry + `}}`))
		NewWithT(t).Expect(err).To(And(MatchError(ContainSubstring(want)), MatchError(ContainSubstring(`region "r", host "pve1": `))), "%v", entry)
	}
}
