// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"slices"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

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

// Reserved disks count on their own storage, on a shared one for all Hosts.
func TestFitWithReservedDisks(t *testing.T) {
	t.Parallel()
	env := newDiskEnv()
	env.reservations["a"] = inventory.Reservation{
		ClaimUID: "a", Region: "r", Host: "pve2", Storage: "local", VMID: 20001, DiskBytes: gib,
		Disks: []inventory.ReservedDisk{{Storage: "nas", Bytes: 400 * gib}},
	}
	need := placement.Need{CPUs: 1, MemoryBytes: gib, DiskBytes: 60 * gib, Storage: "nas"}
	env.host("r", "pve2", 8, 32)
	nas := env.region("r").Storages[2]
	nas.Host = "pve2"
	env.region("r").Storages = append(env.region("r").Storages, nas)
	if ok, reason := placement.Fit(env.view(), zone("pve1"), need); ok || reason != "pve1: 50.0 GiB free on storage nas, 60.0 GiB requested" {
		t.Errorf("fits %v because %q, want it not to fit", ok, reason)
	}
}
