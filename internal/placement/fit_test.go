// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func TestFitReason(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	env.host("r", "pve1", 8, 32)
	env.guest("r", "pve1", 100, 4, 30)
	env.host("r", "pve2", 8, 32)
	env.region("r").Hosts[1].Online = false
	env.region("r").Storages[0].UsedBytes = 880 * gib
	local := env.region("r").Storages[0]
	iso, inactive := local, local
	iso.Name, iso.Content = "isos", []string{"iso"}
	inactive.Name, inactive.Available = "nfs", false
	env.region("r").Storages = append(env.region("r").Storages, iso, inactive)
	view := env.view()

	disk := func(storage string, sizeGiB int64) placement.Need {
		return placement.Need{CPUs: 1, MemoryBytes: gib, DiskBytes: sizeGiB * gib, Storage: storage}
	}
	for name, c := range map[string]struct {
		host string
		need placement.Need
		want string
	}{
		"fits_exactly":              {"pve1", placement.Need{CPUs: 4, MemoryBytes: 2 * gib, DiskBytes: 20 * gib, Storage: "local"}, ""},
		"CPUs":                      {"pve1", need(8, 1), "pve1: 4 CPUs free, 8 requested"},
		"more_CPUs_than_the_host":   {"pve1", need(9, 1), "pve1: 8 CPUs in total, 9 requested"},
		"memory":                    {"pve1", need(1, 4), "pve1: 2.0 GiB memory free, 4.0 GiB requested"},
		"more_memory_than_the_host": {"pve1", need(1, 64), "pve1: 33.0 GiB memory in total, 64.0 GiB requested"},
		"all_reasons":               {"pve1", need(8, 4), "pve1: 4 CPUs free, 8 requested; 2.0 GiB memory free, 4.0 GiB requested"},
		"disk":                      {"pve1", disk("local", 30), "pve1: 20.0 GiB free on storage local, 30.0 GiB requested"},
		"unknown_storage":           {"pve1", disk("ceph", 1), "pve1: no storage ceph, or the token lacks Datastore.Audit on /storage/ceph"},
		"inactive_storage":          {"pve1", disk("nfs", 1), "pve1: storage nfs is not active"},
		"storage_for_ISOs":          {"pve1", disk("isos", 1), "pve1: storage isos does not accept VM disks (content type images)"},
		"no_storage":                {"pve1", disk("", 5000), ""},
		"offline":                   {"pve2", need(1, 1), "pve2: offline"},
		"unknown":                   {"pve3", need(1, 1), "pve3: region r has no such host"},
	} {
		ok, reason := placement.Fit(view, zone(c.host), c.need)
		g.Expect(ok).To(Equal(c.want == ""), "%s: fits", name)
		g.Expect(reason).To(Equal(c.want), "%s: fits", name)
	}
}

func TestFitWithRatios(t *testing.T) {
	t.Parallel()
	settings, err := inventory.ParseSettings([]byte(`{"r": {"*": {"cpuratio": 4, "memoryratio": 2}}}`))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	env := newEnv()
	env.settings = settings
	env.host("r", "pve1", 8, 31)
	env.guest("r", "pve1", 100, 8, 31) // full without ratios
	view := env.view()
	if ok, reason := placement.Fit(view, zone("pve1"), need(8, 31)); !ok {
		t.Errorf("the ratios are not applied: %s", reason)
	}
	for _, n := range []placement.Need{need(9, 1), need(1, 33)} {
		if ok, _ := placement.Fit(view, zone("pve1"), n); ok {
			t.Errorf("%+v fits on a smaller Host, where Proxmox would not start it", n)
		}
	}
}

func TestFitOvercommittedHost(t *testing.T) {
	t.Parallel()
	env := newEnv()
	env.host("r", "pve1", 8, 32)
	env.guest("r", "pve1", 100, 12, 40)
	_, reason := placement.Fit(env.view(), zone("pve1"), need(1, 1))
	NewWithT(t).Expect(reason).To(Equal("pve1: 0 CPUs free, 1 requested; 0.0 GiB memory free, 1.0 GiB requested"))
}

func TestFitsDoesNotAllocate(t *testing.T) {
	env := newEnv()
	env.host("r", "pve1", 8, 32)
	view := env.view()
	for _, n := range []placement.Need{need(4, 4), need(16, 4), {CPUs: 1, Storage: "local", DiskBytes: gib}} {
		NewWithT(t).Expect(testing.AllocsPerRun(100, func() { placement.Fits(view, zone("pve1"), n) })).To(BeNumerically("<=", 0), "%+v", n)
	}
}
