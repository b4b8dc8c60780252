// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func TestFitTellsWhyNot(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.host("r", "pve1", 8, 32)
	w.guest("r", "pve1", 100, 4, 30)
	w.host("r", "pve2", 8, 32)
	w.region("r").Hosts[1].Online = false
	w.region("r").Storages[0].UsedBytes = 880 * gib
	local := w.region("r").Storages[0]
	iso, away := local, local
	iso.Name, iso.Content = "isos", []string{"iso"}
	away.Name, away.Available = "nfs", false
	w.region("r").Storages = append(w.region("r").Storages, iso, away)
	view := w.view()

	disk := func(storage string, sizeGiB int64) placement.Need {
		return placement.Need{CPUs: 1, MemoryBytes: gib, DiskBytes: sizeGiB * gib, Storage: storage}
	}
	for name, c := range map[string]struct {
		host string
		need placement.Need
		want string
	}{
		"fits exactly":      {"pve1", placement.Need{CPUs: 4, MemoryBytes: 2 * gib, DiskBytes: 20 * gib, Storage: "local"}, ""},
		"CPUs":              {"pve1", need(8, 1), "pve1: 4 CPUs free, 8 wanted"},
		"more than it has":  {"pve1", need(9, 1), "pve1: 8 CPUs in all, 9 wanted"},
		"memory":            {"pve1", need(1, 4), "pve1: 2.0 GiB memory free, 4.0 GiB wanted"},
		"memory in all":     {"pve1", need(1, 64), "pve1: 33.0 GiB memory in all, 64.0 GiB wanted"},
		"all reasons":       {"pve1", need(8, 4), "pve1: 4 CPUs free, 8 wanted; 2.0 GiB memory free, 4.0 GiB wanted"},
		"disk":              {"pve1", disk("local", 30), "pve1: 20.0 GiB free on storage local, 30.0 GiB wanted"},
		"no such storage":   {"pve1", disk("ceph", 1), "pve1: no storage ceph, or the token lacks Datastore.Audit on /storage/ceph"},
		"storage is down":   {"pve1", disk("nfs", 1), "pve1: storage nfs is not active"},
		"storage for ISOs":  {"pve1", disk("isos", 1), "pve1: storage isos does not take VM disks (content type images)"},
		"storage left open": {"pve1", disk("", 5000), ""},
		"offline":           {"pve2", need(1, 1), "pve2: offline"},
		"unknown":           {"pve3", need(1, 1), "pve3: region r has no such Host"},
	} {
		ok, reason := placement.Fit(view, zone(c.host), c.need)
		if ok != (c.want == "") || reason != c.want {
			t.Errorf("%s: fits %v because %q, want %q", name, ok, reason, c.want)
		}
	}
}

func TestRatiosNeverMakeAVMLargerThanItsHost(t *testing.T) {
	t.Parallel()
	settings, err := inventory.ParseSettings([]byte(`{"r": {"*": {"cpuratio": 4, "memoryratio": 2}}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	w.settings = settings
	w.host("r", "pve1", 8, 31)
	w.guest("r", "pve1", 100, 8, 31) // full by the Host's own measure
	view := w.view()
	if ok, reason := placement.Fit(view, zone("pve1"), need(8, 31)); !ok {
		t.Errorf("the ratios are not applied: %s", reason)
	}
	for _, n := range []placement.Need{need(9, 1), need(1, 33)} {
		if ok, _ := placement.Fit(view, zone("pve1"), n); ok {
			t.Errorf("%+v fits on a smaller Host, where Proxmox would not start it", n)
		}
	}
}

func TestOverfullHostHasNothingFree(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.host("r", "pve1", 8, 32)
	w.guest("r", "pve1", 100, 12, 40)
	_, reason := placement.Fit(w.view(), zone("pve1"), need(1, 1))
	if want := "pve1: 0 CPUs free, 1 wanted; 0.0 GiB memory free, 1.0 GiB wanted"; reason != want {
		t.Errorf("the reason is %q, want %q", reason, want)
	}
}

func TestFitsDoesNotAllocate(t *testing.T) {
	w := newWorld()
	w.host("r", "pve1", 8, 32)
	view := w.view()
	for _, n := range []placement.Need{need(4, 4), need(16, 4), {CPUs: 1, Storage: "local", DiskBytes: gib}} {
		if allocs := testing.AllocsPerRun(100, func() { placement.Fits(view, zone("pve1"), n) }); allocs > 0 {
			t.Errorf("%+v: %g allocations, want none", n, allocs)
		}
	}
}
