// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func zones(hosts ...string) []placement.Zone {
	var all []placement.Zone
	for _, h := range hosts {
		all = append(all, zone(h))
	}
	return all
}

// hostEnv returns Hosts with 16 CPUs and 64 GiB each.
func hostEnv(names ...string) *testEnv {
	env := newEnv()
	for _, name := range names {
		env.host("r", name, 16, 64)
	}
	return env
}

// requestFor returns a request for one type.
func requestFor(size placement.Need, hosts ...string) placement.Request {
	return placement.Request{
		ClaimUID: "a", NodePool: "p", Options: []placement.Option{{InstanceType: "t", Need: size, Zones: zones(hosts...)}},
	}
}

func TestChooseEqualHosts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const hosts, claims = 6, 6000
	var names []string
	for h := range hosts {
		names = append(names, fmt.Sprint("pve", h))
	}
	view := hostEnv(names...).view()
	chosen := map[placement.Zone]int{}
	for n := range claims {
		request := requestFor(need(2, 4), names...)
		request.ClaimUID = fmt.Sprint("claim-", n)
		got, err := placement.Choose(view, request)
		g.Expect(err).NotTo(HaveOccurred())
		chosen[got.Zone]++
	}
	for z, n := range chosen {
		g.Expect(n).To(BeNumerically("~", claims/hosts, claims/hosts/5), "%s was chosen", z)
	}
}

func TestChooseZoneStorage(t *testing.T) {
	t.Parallel()
	env := hostEnv("pve1", "pve2")
	full := &env.region("r").Storages[0]
	full.UsedBytes = full.TotalBytes
	request := requestFor(placement.Need{CPUs: 1, MemoryBytes: gib, DiskBytes: 30 * gib}, "pve1", "pve2")
	request.Storages = map[placement.Zone]string{zone("pve1"): "local", zone("pve2"): "local"}
	NewWithT(t).Expect(placement.Choose(env.view(), request)).To(And(HaveField("Zone", zone("pve2")), HaveField("Need.Storage", "local")))
}

func TestChooseNoFitError(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	for n, cpus := range []int{4, 4, 2} {
		env.host("r", fmt.Sprint("pve", n+1), cpus, 64)
	}
	env.region("r").Hosts[2].Online = false
	request := placement.Request{ClaimUID: "a", Excluded: map[placement.Zone]string{zone("pve4"): "the NodeClass has no template on this host"},
		Options: []placement.Option{
			{InstanceType: "small", Need: need(8, 8), Zones: zones("pve2", "pve1")},
			{InstanceType: "big", Need: need(16, 8), Zones: zones("pve1", "pve2", "pve3")},
		}}
	_, err := placement.Choose(env.view(), request)
	noFit, _ := errors.AsType[*placement.NoFitError](err)
	g.Expect(noFit).To(HaveField("Hosts", HaveLen(4)))
	want := "no host fits small, the cheapest allowed instance type: pve1, pve2: 4 CPUs in total, 8 requested | pve3: offline | pve4: the NodeClass has no template on this host"
	g.Expect(err).To(MatchError(want))

	env.host("q", "pve1", 1, 64)
	request.Options[0].Zones = append(request.Options[0].Zones, placement.Zone{Region: "q", Host: "pve1"})
	_, err = placement.Choose(env.view(), request)
	want = "no host fits small, the cheapest allowed instance type: q/pve1: 1 CPUs in total, 8 requested | r/pve1, r/pve2: 4 CPUs in total, 8 requested | " +
		"r/pve3: offline | r/pve4: the NodeClass has no template on this host"
	g.Expect(err).To(MatchError(want))

	g.Expect(placement.Choose(env.view(), placement.Request{})).Error().To(MatchError("no host is allowed for this NodeClaim"))
}

func TestChoosePoolAffinityReason(t *testing.T) {
	t.Parallel()
	env := hostEnv("pve1", "pve2")
	env.reserve(inventory.Reservation{ClaimUID: "x", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Amount: observed.Amount{CPUs: 16}})
	env.reserve(inventory.Reservation{ClaimUID: "y", NodePool: "q", Region: "r", Host: "pve2", VMID: 20002})
	for affinity, want := range map[v1alpha1.PoolAffinity]string{
		v1alpha1.PoolAffinitySameHost:      "pve1: 0 CPUs free, 2 requested | pve2: the VMs of NodePool p are kept on pve1",
		v1alpha1.PoolAffinitySeparateHosts: "pve1: 16 CPUs in total, 17 requested; has a VM of NodePool p, whose VMs are kept on separate hosts | pve2: 16 CPUs in total, 17 requested",
	} {
		request := requestFor(need(2, 4), "pve1", "pve2")
		request.Affinity = affinity
		if affinity == v1alpha1.PoolAffinitySeparateHosts {
			request.Options[0].Need.CPUs = 17
		}
		_, err := placement.Choose(env.view(), request)
		NewWithT(t).Expect(err).To(MatchError("no host fits t, the cheapest allowed instance type: " + want))
	}
}

// BenchmarkChooseNothingFits measures the worst case: every option on every Host.
func BenchmarkChooseNothingFits(b *testing.B) {
	env := newEnv()
	var names []string
	for h := range 100 {
		names = append(names, fmt.Sprint("pve", h))
		env.host("r", names[h], 128, 512)
	}
	for n := range 1000 {
		env.reserve(inventory.Reservation{ClaimUID: fmt.Sprint("reserved-", n), NodePool: "p", Region: "r", Host: names[n%100], VMID: 20000 + n,
			Amount: observed.Amount{CPUs: 4, MemoryBytes: 16 * gib}})
	}
	request := placement.Request{ClaimUID: "a", NodePool: "p"}
	for o := range 60 {
		option := placement.Option{InstanceType: fmt.Sprint("t", o), Need: need(129+o, int64(1+o)), Zones: zones(names...)}
		request.Options = append(request.Options, option)
	}
	view := env.view()
	for b.Loop() {
		if _, err := placement.Choose(view, request); err == nil {
			b.Fatal("something fits")
		}
	}
}

// newDiskEnv returns a Host with the storages local, with 1000 GiB, fast, with 100 GiB, and the
// shared nas, with 500 GiB. 90 % of them can be used.
func newDiskEnv() *testEnv {
	env := newEnv()
	env.host("r", "pve1", 8, 32)
	fast, nas := env.region("r").Storages[0], env.region("r").Storages[0]
	fast.Name, fast.TotalBytes = "fast", 100*gib
	nas.Name, nas.TotalBytes, nas.Shared = "nas", 500*gib, true
	env.region("r").Storages = append(env.region("r").Storages, fast, nas)
	return env
}

func TestChooseStorages(t *testing.T) {
	t.Parallel()
	listed := func(names ...string) placement.Storages { return placement.Storages{Names: names} }
	mostFree := func(names ...string) placement.Storages { return placement.Storages{Names: names, MostFree: true} }
	disk := func(sizeGiB int64, storages placement.Storages) placement.Disk {
		return placement.Disk{Name: "data", Bytes: sizeGiB * gib, Storages: storages}
	}
	for name, c := range map[string]struct {
		bootGiB  int64
		disks    placement.Disks
		boot     string
		storages []string
		reason   string
	}{
		"first_of_list":            {bootGiB: 30, disks: placement.Disks{Boot: listed("fast", "local")}, boot: "fast"},
		"full_storage_is_skipped":  {bootGiB: 91, disks: placement.Disks{Boot: listed("fast", "local")}, boot: "local"},
		"most_free":                {bootGiB: 30, disks: placement.Disks{Boot: mostFree("fast", "local", "nas")}, boot: "local"},
		"storage_of_the_boot_disk": {bootGiB: 30, disks: placement.Disks{More: []placement.Disk{disk(10, placement.Storages{})}}, boot: "local", storages: []string{"local"}},
		"disks_add_up": {bootGiB: 30, disks: placement.Disks{Boot: listed("fast"), More: []placement.Disk{disk(50, listed("fast", "nas")), disk(50, listed("fast", "nas"))}},
			boot: "fast", storages: []string{"fast", "nas"}},
		"most_free_after_other_disks": {bootGiB: 30, disks: placement.Disks{More: []placement.Disk{disk(440, mostFree("local", "nas")), disk(1, mostFree("local", "nas"))}},
			boot: "local", storages: []string{"local", "nas"}},
		"no_space": {bootGiB: 30, disks: placement.Disks{Boot: listed("fast"), More: []placement.Disk{disk(61, listed("fast"))}},
			reason: "pve1: disk data: 60.0 GiB free on storage fast, 61.0 GiB requested"},
		"no_space_for_the_boot_disk": {bootGiB: 901, disks: placement.Disks{Boot: listed("fast", "local")},
			reason: "pve1: 90.0 GiB free on storage fast, 901.0 GiB requested; 900.0 GiB free on storage local, 901.0 GiB requested"},
		"missing_storage": {bootGiB: 30, disks: placement.Disks{More: []placement.Disk{disk(1, listed("tank"))}},
			reason: "pve1: disk data: no storage tank, or the token lacks Datastore.Audit on /storage/tank"},
	} {
		view := newDiskEnv().view()
		need := placement.Need{CPUs: 1, MemoryBytes: gib, DiskBytes: c.bootGiB * gib, Storage: "local", Disks: &c.disks}
		if ok, reason := placement.Fit(view, zone("pve1"), need); ok != (c.reason == "") || reason != c.reason {
			t.Errorf("%s: fits %v because %q, want %q", name, ok, reason, c.reason)
		}
		request := placement.Request{
			ClaimUID: "claim", Disks: map[placement.Zone]*placement.Disks{zone("pve1"): &c.disks}, Storages: map[placement.Zone]string{zone("pve1"): "local"},
			Options: []placement.Option{{InstanceType: "t", Need: placement.Need{CPUs: 1, MemoryBytes: gib, DiskBytes: c.bootGiB * gib}, Zones: []placement.Zone{zone("pve1")}}},
		}
		placed, err := placement.Choose(view, request)
		if (err == nil) != (c.reason == "") || placed.Need.Storage != c.boot || !slices.Equal(placed.DiskStorages, c.storages) {
			t.Errorf("%s: chose %q and %q (%v), want %q and %q", name, placed.Need.Storage, placed.DiskStorages, err, c.boot, c.storages)
		}
	}
}

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
