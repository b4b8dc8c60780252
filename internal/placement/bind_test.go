// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

var asRoot = placement.PinningSupport{Root: true}

func bound(cpus int, memoryMiB int64) placement.Need {
	return placement.Need{CPUs: cpus, MemoryBytes: memoryMiB << 20, Layout: placement.Layout{Bound: true}}
}

func exclusive(cpus int, memoryMiB int64, pinning placement.PinningSupport) placement.Need {
	need := bound(cpus, memoryMiB)
	need.Layout.Exclusive, need.PinningSupport = true, pinning
	return need
}

// place chooses a Binding on the Host and reserves it.
func (host *numaHost) place(t *testing.T, need placement.Need) *placement.Binding {
	t.Helper()
	p, err := placement.Choose(host.view(t), numaRequest(need))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	host.reserve(p)
	return p.Binding
}

func TestBindTightestCell(t *testing.T) {
	t.Parallel()
	host := newNUMAHost(2, 4, 1, 8192)
	host.guests = []numaGuest{{vcpus: 2, memory: 1024, cell: 1}}
	NewWithT(t).Expect(host.place(t, bound(2, 1024)).Cells[0].ID).To(BeEquivalentTo(1), "the small VM went into cell")
	if b := host.place(t, bound(4, 8192)); len(b.Cells) != 1 || b.Cells[0].ID != 0 {
		t.Errorf("the large VM is bound to %+v", b.Cells)
	}
}

func TestBindExclusiveCores(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newNUMAHost(1, 4, 2, 8192) // cores 0,4 1,5 2,6 3,7
	first := host.place(t, exclusive(3, 1024, asRoot))
	g.Expect(first.CPUs.String()).To(Equal("0-1,4-5"), "three vCPUs have the CPUs")
	g.Expect(first.Method).To(Equal(placement.PinByRoot), "three vCPUs have the CPUs")
	if got := first.Pin; len(got) != 3 || got[0] != 0 || got[1] != 4 || got[2] != 1 {
		t.Errorf("the vCPUs are pinned to %v, want the two threads of a core first", got)
	}
	if second := host.place(t, exclusive(4, 1024, placement.PinningSupport{Root: true, Hook: true})); second.CPUs.String() != "2-3,6-7" || second.Method != placement.PinByHook {
		t.Errorf("the next one has %s by %s", second.CPUs, second.Method)
	}
}

func TestBindSlots(t *testing.T) {
	t.Parallel()
	host := newNUMAHost(2, 8, 1, 16384)
	host.slots = []cpuset.CPUSet{cpuset.New(0, 1, 2, 3, 4, 5), cpuset.New(8, 9, 10, 11), cpuset.New(6, 7, 12, 13)}
	pinning := placement.PinningSupport{SlotTag: slotTag, Root: true}
	for n, want := range []struct {
		slot int
		cpus string
	}{{9001, "8-11"}, {9000, "0-5"}, {9002, "6-7,12-13"}} {
		b := host.place(t, exclusive(4, 2048, pinning))
		if b.Method != placement.PinBySlot || b.Slot != want.slot || b.CPUs.String() != want.cpus {
			t.Errorf("VM %d has %s by %s %d, want slot %d: fewest cells, then the smallest", n, b.CPUs, b.Method, b.Slot, want.slot)
		}
	}
	if ok, reason := placement.Fit(host.view(t), zone("pve1"), exclusive(4, 2048, placement.PinningSupport{SlotTag: slotTag})); ok || reason != "pve1: 3 slots with 4 CPUs or more, all in use" {
		t.Errorf("got %v %q", ok, reason)
	}
}

// Clones of a slot with hugepages do not start if their memory is not a multiple of these.
func TestBindSlotsWithHugepages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newNUMAHost(1, 8, 1, 16384)
	host.slots, host.slotPages = []cpuset.CPUSet{cpuset.New(0, 1), cpuset.New(2, 3, 4, 5)}, map[int]string{0: "1024"}
	need := exclusive(2, 2048, placement.PinningSupport{SlotTag: slotTag})
	g.Expect(host.place(t, need).Slot).To(BeEquivalentTo(9001), "want 9001, which has none either")
	ok, reason := placement.Fit(host.view(t), zone("pve1"), need)
	g.Expect(ok).To(BeFalse(), "a second VM without hugepages fits: %s", reason)
	need.Layout.PageMiB = 1024
	g.Expect(host.place(t, need).Slot).To(BeEquivalentTo(9000), "a VM with hugepages has slot")
}

// Slots with other hugepages are not reported as missing.
func TestUnsupportedReasonSlotsWithHugepages(t *testing.T) {
	t.Parallel()
	host := newNUMAHost(1, 8, 1, 16384)
	host.slots, host.slotPages = []cpuset.CPUSet{cpuset.New(0, 1)}, map[int]string{0: "1024"}
	need := exclusive(2, 2048, placement.PinningSupport{SlotTag: slotTag})
	if ok, reason := placement.Fit(host.view(t), zone("pve1"), need); ok || !strings.Contains(reason, "have other hugepages, and the class has no spec.cpu.hugepages") {
		t.Errorf("found %t: %s", ok, reason)
	}
	need.Layout.PageMiB = 2
	if ok, reason := placement.Fit(host.view(t), zone("pve1"), need); ok || !strings.Contains(reason, "spec.cpu.hugepages of 2 MiB") {
		t.Errorf("found %t: %s", ok, reason)
	}
}

func TestFitCellReasons(t *testing.T) {
	t.Parallel()
	huge := func(need placement.Need, mib int) placement.Need { need.Layout.PageMiB = mib; return need }
	guests := func(guests ...numaGuest) func(*numaHost) { return func(host *numaHost) { host.guests = guests } }
	slot := func(cpus ...int) func(*numaHost) {
		return func(host *numaHost) { host.slots = []cpuset.CPUSet{cpuset.New(cpus...)} }
	}
	bySlot := placement.PinningSupport{SlotTag: slotTag}
	half := huge(bound(2, 1500), 1024)
	half.PinningSupport = asRoot
	for name, test := range map[string]struct {
		need placement.Need
		fill func(*numaHost)
		want string
	}{
		"cores": {
			exclusive(5, 1024, asRoot), guests(numaGuest{vcpus: 1, cell: -1, memory: 1, affinity: cpuset.New(0, 5)}),
			"pve1: cell 0: 3 cores free, 5 requested; cell 1: 3 cores free, 5 requested",
		},
		"memory": {bound(3, 9000), guests(), "pve1: cell 0: 8.0 GiB memory free, 8.8 GiB requested; cell 1: 8.0 GiB memory free, 8.8 GiB requested"},
		"CPUs": {
			bound(3, 1024), guests(numaGuest{vcpus: 2, memory: 1024, cell: 0}, numaGuest{vcpus: 2, memory: 1024, cell: 1}),
			"pve1: cell 0: 2 CPUs free, 3 requested; cell 1: 2 CPUs free, 3 requested",
		},
		"no_pinning_method": {
			exclusive(2, 1024, bySlot), guests(),
			"pve1: spec.cpu.pinning Exclusive needs one of: templates created by root with an affinity and the tag karpenter-slot-ubuntu, a hookscript named pve-hook in the template, a root login in the cloud config; this host has none of them",
		},
		"no_hugepages": {
			huge(bound(2, 1024), 1024), guests(),
			"pve1: spec.cpu.hugepages needs one of: the option hugepages=1024 in the template, set by root, or a root login in the cloud config; this host has neither",
		},
		"half_a_page": {half, guests(), "pve1: 1500 MiB is not a multiple of the hugepage size of 1024 MiB"},
		"small_slots": {exclusive(4, 1024, bySlot), slot(0, 1), "pve1: none of 1 slots has 4 CPUs"},
		"slots_with_CPUs_the_host_lacks": {
			exclusive(2, 1024, bySlot), slot(7, 8), "pve1: 1 free slots with 2 CPUs or more, none with enough CPUs and memory in each cell",
		},
	} {
		g := NewWithT(t)
		host := newNUMAHost(2, 4, 1, 8192)
		test.fill(host)
		ok, reason := placement.Fit(host.view(t), zone("pve1"), test.need)
		g.Expect(ok).To(BeFalse(), name)
		g.Expect(reason).To(Equal(test.want), name)
	}
}

func TestBindHugepages(t *testing.T) {
	t.Parallel()
	host := newNUMAHost(2, 4, 1, 8192)
	need := bound(6, 7*1024)
	need.Layout.PageMiB, need.PinningSupport = 1024, asRoot
	b := host.place(t, need)
	if len(b.Cells) != 2 || b.Cells[0].MemoryMiB != 4096 || b.Cells[1].MemoryMiB != 3072 || b.Hugepages != "1024" {
		t.Errorf("got %+v with hugepages %q", b.Cells, b.Hugepages)
	}
	need.PinningSupport = placement.PinningSupport{Hugepages: "1024"}
	host.reservations = map[string]inventory.Reservation{}
	NewWithT(t).Expect(host.place(t, need).Hugepages).To(BeEmpty(), "root is to set hugepages")
}

// TestBindSameCellAffinity checks that VMs of a NodePool share one cell, and the reason
// when that cell is full.
func TestBindSameCellAffinity(t *testing.T) {
	t.Parallel()
	host := newNUMAHost(2, 4, 1, 8192)
	need := bound(2, 1024)
	need.NodePool, need.Affinity = "db", v1alpha1.PoolAffinitySameCell
	first := host.place(t, need)
	host.guests = []numaGuest{{vcpus: 1, memory: 1024, cell: 1 - first.Cells[0].ID}}
	NewWithT(t).Expect(host.place(t, need).Cells[0].ID).To(Equal(first.Cells[0].ID), "the second VM is in cell")
	ok, reason := placement.Fit(host.view(t), zone("pve1"), need)
	if ok || !strings.Contains(reason, "0 CPUs free, 2 requested") || !strings.Contains(reason, "the VMs of NodePool db are kept in another cell") {
		t.Errorf("got %v %q", ok, reason)
	}
	large := bound(6, 1024)
	large.NodePool, large.Affinity = "large", v1alpha1.PoolAffinitySameCell
	if ok, _ := placement.Fit(host.view(t), zone("pve1"), large); ok {
		t.Error("a VM of a NodePool with affinity SameCell was split")
	}
}

// TestChooseFewestCells prefers a Host that binds the VM to one cell over an emptier one
// that has to split it.
func TestChooseFewestCells(t *testing.T) {
	t.Parallel()
	env := newEnv()
	env.host("r", "many", 32, 64)
	env.host("r", "one", 16, 32)
	env.settings = parseSettings(t, `{"r": {"many": {"sockets": 8}, "one": {"sockets": 1}}}`)
	NewWithT(t).Expect(placement.Choose(env.view(), requestFor(bound(8, 4096), "many", "one"))).
		To(And(HaveField("Zone.Host", "one"), HaveField("Binding.Cells", HaveLen(1))))
}

// TestBindSharedCache: exclusive cores share as few last-level caches as possible.
func TestBindSharedCache(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newNUMAHost(1, 8, 1, 1<<20)
	host.caches = []cpuset.CPUSet{cpuset.New(0, 1, 2, 3), cpuset.New(4, 5, 6, 7)}
	cpus := func(vcpus int) string { return host.place(t, exclusive(vcpus, 1024, asRoot)).CPUs.String() }
	g.Expect(cpus(1)).To(Equal("0"))
	g.Expect(cpus(4)).To(Equal("4-7"), "not 1-4")
	g.Expect(cpus(2)).To(Equal("1-2"))
	host = newNUMAHost(1, 8, 1, 1<<20)
	host.caches = []cpuset.CPUSet{cpuset.New(0, 1, 2, 3), cpuset.New(4, 5, 6, 7)}
	host.reserved = cpuset.New(0)
	g.Expect(cpus(2)).To(Equal("1-2"), "the cache with fewer free cores")
	g.Expect(cpus(5)).To(Equal("3-7"), "more than one cache has")
}
