// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
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
	// pinnedStopped is with a stopped guest that is pinned to two CPUs.
	pinnedStopped = "0: 8 32.0 " + allOf0 + "; 1: 8 32.0 [10 11 12 13 14 15]"
)

// with returns a function that adds a guest.
func with(row proxmox.GuestRow, options ...string) func(*numaHost) {
	return func(h *numaHost) { h.guest(row, options...) }
}

func none(*numaHost) {}

func running(vmid, cpus int) proxmox.GuestRow { return vm(vmid, "pve1", "running", cpus, 8) }

func stopped(vmid, cpus int) proxmox.GuestRow { return vm(vmid, "pve1", "stopped", cpus, 8) }

// pinned returns the options of a VM that a hookscript pins.
func pinned(vmid int) []string {
	mark := ownership.Mark{VMID: vmid, KubeCluster: "k", ClaimUID: "c", CPUs: "0-1", Pin: []int{0, 1}}
	return []string{"description", mark.Notes("ours")}
}

func TestCellsGuests(t *testing.T) {
	t.Parallel()
	numa := []string{"numa", "1", "numa0", "cpus=0-3,hostnodes=1,memory=8192,policy=bind"}
	topology := []string{"affinity", "0-7,8-15"}
	slot := template(9100)
	slot.Tags = []string{observed.SlotTagPrefix + "ubuntu"}
	started, renamed := topologyVM(100), topologyVM(100)
	started.Status, renamed.Tags = "running", nil
	for name, test := range map[string]struct {
		fill func(*numaHost)
		want string
	}{
		"no_guests":                           {none, idle},
		"bound_guest_counts_in_its_cell":      {with(running(100, 4), numa...), bound},
		"bound_guest_stopped":                 {with(stopped(100, 4), numa...), idle},
		"floating_guest_counts_in_every_cell": {with(running(100, 3)), shared},
		"container_counts_in_every_cell":      {with(container(100, 4, 8)), shared},
		"numaN_without_numa":                  {with(running(100, 4), numa[2:]...), shared},
		"interleaved_memory": {
			with(running(100, 4), "numa", "1", "numa0", "cpus=0-3,hostnodes=0-1,memory=8192,policy=interleave"), shared,
		},
		"affinity_binds_CPUs_and_memory": {
			with(running(100, 2), "affinity", "8-9"), "0: 8 32.0 " + allOf0 + "; 1: 6 24.0 [10 11 12 13 14 15]",
		},
		"affinity_of_stopped_guest_keeps_cores": {with(stopped(100, 2), "affinity", "8-9"), pinnedStopped},
		"topology_VM_of_upstream":               {with(topologyVM(100), topology...), idle},
		"topology_VM_of_upstream_in_our_range":  {with(topologyVM(20001), topology...), idle},
		"topology_VM_of_upstream_started":       {with(started, topology...), "0: 0 0.0 []; 1: 0 0.0 []"},
		"VM_with_its_name":                      {with(renamed, "affinity", "8-9"), pinnedStopped},
		"pinned_by_hookscript": {
			with(running(20001, 2), pinned(20001)...), "0: 6 24.0 [2 3 4 5 6 7]; 1: 8 32.0 " + allOf1,
		},
		"pinned_by_hookscript_but_copied": {
			with(running(20001, 2), pinned(20002)...), "0: 7 28.0 " + allOf0 + "; 1: 7 28.0 " + allOf1,
		},
		"slot_keeps_its_cores":        {with(slot, "affinity", "0-3"), "0: 8 32.0 [4 5 6 7]; 1: 8 32.0 " + allOf1},
		"template_that_is_not_a_slot": {with(template(9100), "affinity", "0-3"), idle},
	} {
		h := twoSockets()
		test.fill(h)
		h.expectCells(t, name, test.want)
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
		"VM_not_visible":                 {inCell, false, none, bound},
		"exclusive_cores":                {exclusive, false, none, exclusiveCells},
		"unconfigured_clone_counts_once": {exclusive, false, with(vm(20001, "pve1", "stopped", 1, 1)), exclusiveCells},
		"configured_VM_counts_once": {
			exclusive, true,
			with(running(20001, 4), "numa", "1", "numa0", "cpus=0-3,hostnodes=1,memory=8192,policy=bind", "affinity", "8-11"),
			exclusiveCells,
		},
		"cores_stay_reserved_with_outdated_config": {exclusive, true, with(running(20001, 4)), exclusiveCells},
		"migrated_VM_counts_on_its_host":           {exclusive, true, with(vm(20001, "pve2", "running", 4, 8), "affinity", "8-11"), idle},
		"clone_counts_on_its_target":               {exclusive, false, with(vm(20001, "pve2", "stopped", 1, 1)), exclusiveCells},
		"without_binding_floats":                   {nil, false, none, shared},
		"without_binding_counts_once":              {nil, false, with(vm(20001, "pve1", "stopped", 2, 2)), shared},
	} {
		h := twoSockets()
		r := reservation(20001, test.binding)
		r.Fulfilled = test.fulfilled
		h.reservations["uid"] = r
		test.guest(h)
		h.expectCells(t, name, test.want)
	}
}

func TestCellsSlots(t *testing.T) {
	t.Parallel()
	slot := func(h *numaHost, vmid int, affinity string) {
		row := template(vmid)
		row.Tags = []string{"k8s", observed.SlotTagPrefix + "ubuntu"}
		h.guest(row, "template", "1", "affinity", affinity, "hugepages", "1024")
	}
	for name, test := range map[string]struct {
		fill func(*numaHost)
		busy []bool
	}{
		"free": {none, []bool{false, false}},
		"reserved": {func(h *numaHost) {
			h.reservations["uid"] = reservation(20001, &inventory.Binding{CPUs: cpuset.New(4, 5)})
		}, []bool{false, true}},
		"used_by_a_VM":                    {with(running(20001, 2), "affinity", "0-3"), []bool{true, false}},
		"used_by_a_VM_that_overlaps_both": {with(stopped(100, 2), "affinity", "3-4"), []bool{true, true}},
	} {
		h := twoSockets()
		slot(h, 9101, "4-7")
		slot(h, 9100, "0-3")
		test.fill(h)
		slots := h.view(t).Cells("r", "pve1").Slots
		g := NewWithT(t)
		g.Expect(slots).To(HaveLen(2), name)
		g.Expect(slots[0]).To(And(HaveField("VMID", 9100), HaveField("CPUs.String()", "0-3"), HaveField("Hugepages", "1024")), name)
		g.Expect([]bool{slots[0].Busy, slots[1].Busy}).To(Equal(test.busy), name)
	}
}
