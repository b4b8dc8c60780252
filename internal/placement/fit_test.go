// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
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
	env.host("r", "pve4", 8, 32)
	env.guest("r", "pve4", 101, 12, 40)
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
		"overcommitted":             {"pve4", need(1, 1), "pve4: 0 CPUs free, 1 requested; 0.0 GiB memory free, 1.0 GiB requested"},
		"unknown":                   {"pve3", need(1, 1), "pve3: region r has no such host"},
	} {
		ok, reason := placement.Fit(view, zone(c.host), c.need)
		g.Expect(ok).To(Equal(c.want == ""), name)
		g.Expect(reason).To(Equal(c.want), name)
	}
}

func TestFitWithRatios(t *testing.T) {
	t.Parallel()
	env := newEnv()
	env.settings = parseSettings(t, `{"r": {"*": {"cpuratio": 4, "memoryratio": 2}}}`)
	env.host("r", "pve1", 8, 31)
	env.guest("r", "pve1", 100, 8, 31) // full without ratios
	view := env.view()
	_, reason := placement.Fit(view, zone("pve1"), need(8, 31))
	NewWithT(t).Expect(reason).To(BeEmpty())
	for _, n := range []placement.Need{need(9, 1), need(1, 33)} {
		ok, _ := placement.Fit(view, zone("pve1"), n)
		NewWithT(t).Expect(ok).To(BeFalse(), "%+v fits on a smaller Host, where Proxmox would not start it", n)
	}
}

func TestFitsDoesNotAllocate(t *testing.T) {
	env := newEnv()
	env.host("r", "pve1", 8, 32)
	view := env.view()
	for _, n := range []placement.Need{need(4, 4), need(16, 4), {CPUs: 1, Storage: "local", DiskBytes: gib}} {
		NewWithT(t).Expect(testing.AllocsPerRun(100, func() { placement.Fits(view, zone("pve1"), n) })).To(BeNumerically("<=", 0), "%+v", n)
	}
}

func TestFitCloneQueue(t *testing.T) {
	t.Parallel()
	queue := &placement.CloneQueue{
		Slots: 2, Limit: 10 * time.Minute,
		Duration: func(_, host, _ string) time.Duration {
			return map[string]time.Duration{"slow": 4 * time.Minute}[host]
		},
	}
	for waiting, want := range map[int]bool{0: true, 1: true, 3: true, 4: false, 20: false} {
		env := newEnv()
		for _, host := range []string{"slow", "unknown"} {
			env.host("r", host, 64, 256)
			for n := range waiting {
				env.reserve(inventory.Reservation{
					ClaimUID: fmt.Sprint(host, n), Region: "r", Host: host, VMID: 20000 + n, Storage: "local", Amount: observed.Amount{CPUs: 1},
				})
				env.reserve(inventory.Reservation{ClaimUID: fmt.Sprint("parked", host, n), Region: "r", Host: host, VMID: 20100 + n, Storage: "local"})
			}
		}
		one := need(2, 4)
		one.Storage, one.CloneQueue = "local", queue
		ok, reason := placement.Fit(env.view(), zone("slow"), one)
		NewWithT(t).Expect(ok).To(Equal(want), "with %d clones in the queue, fits is %v (%s)", waiting, ok, reason)
		if !ok && !strings.Contains(reason, fmt.Sprintf("%d clones wait for storage local", waiting)) {
			t.Errorf("the reason is %q", reason)
		}
		if ok, reason := placement.Fit(env.view(), zone("unknown"), one); !ok {
			t.Errorf("clones of unknown duration do not fit: %s", reason)
		}
	}
}

func TestFitReserve(t *testing.T) {
	t.Parallel()
	const refused = "pve1: insufficient reserve: if pve1 failed, its guests with 7 CPUs and 16.0 GiB would not fit on the other hosts with 6 CPUs and 24.0 GiB free: " +
		"no capacity for 100 with 2 CPUs and 8.0 GiB; nor would the guests of pve2"
	for name, c := range map[string]struct {
		settings string
		change   func(*testEnv)
		need     placement.Need
		none     bool // the NodeClass keeps no reserve
		want     string
	}{
		"no_reserve":            {need: need(5, 8), none: true},
		"fits_exactly":          {need: need(4, 8)},
		"refused":               {need: need(5, 8), want: refused},
		"by_settings":           {need: need(5, 8), none: true, settings: `{"r": {"*": {"reserve": "LargestHost"}}}`, want: refused},
		"by_settings_of_others": {need: need(5, 8), none: true, settings: `{"q": {"*": {"reserve": "LargestHost"}}, "r": {"*": {"reserve": "None"}}}`},
		"does_not_fit_at_all":   {need: need(7, 8), want: "pve1: 6 CPUs free, 7 requested"},
		"only_the_new_VM": {
			need:   need(1, 20),
			change: func(env *testEnv) { env.host("r", "pve3", 8, 16); env.guest("r", "pve2", 102, 1, 8) },
			want:   "pve1: insufficient reserve: if pve1 failed, its guests with 3 CPUs and 28.0 GiB would not fit on the other hosts with 13 CPUs and 32.0 GiB free: no capacity for the new VM with 1 CPUs and 20.0 GiB",
		},
		"other_region_is_full": {need: need(4, 8), change: func(env *testEnv) { env.host("q", "pve9", 8, 32); env.guest("q", "pve9", 100, 8, 32) }},
	} {
		env := newEnv()
		for n, host := range []string{"pve1", "pve2"} {
			env.host("r", host, 8, 32)
			env.guest("r", host, 100+n, 2, 8)
		}
		if c.change != nil {
			c.change(env)
		}
		env.settings = parseSettings(t, cmp.Or(c.settings, "{}"))
		c.need.KeepReserve = !c.none
		view := env.view()
		ok, reason := placement.Fit(view, zone("pve1"), c.need)
		g := NewWithT(t)
		g.Expect(reason).To(Equal(c.want), name)
		g.Expect([]bool{ok, placement.Fits(view, zone("pve1"), c.need)}).To(HaveEach(c.want == ""), name)
	}
}

// TestChooseKeepsReserve fills a region: a VM that is launched leaves the reserve free, and
// no VM is launched once it is violated.
func TestChooseKeepsReserve(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	zones := zones("pve1", "pve2", "pve3")
	for _, z := range zones {
		env.host("r", z.Host, 12, 48)
	}
	size := need(2, 8)
	size.KeepReserve = true
	request := placement.Request{Options: []placement.Option{{InstanceType: "type", Need: size, Zones: zones}}}
	for n := range 18 {
		chosen, err := placement.Choose(env.view(), request)
		kept, violation := placement.CheckReserve(env.view(), zones, true)
		g.Expect(kept).To(BeTrue())
		g.Expect(violation).To(BeEmpty())
		if (err == nil) != (n < 12) { // two of three Hosts hold twelve VMs
			t.Fatalf("VM %d: %v", n, err)
		}
		if err == nil {
			env.guest("r", chosen.Zone.Host, 100+n, 2, 8)
		}
	}
	env.guest("r", "pve1", 200, 2, 8)
	_, violation := placement.CheckReserve(env.view(), zones, true)
	g.Expect(violation).NotTo(BeEmpty(), "a VM of another user uses the reserve")
	kept, _ := placement.CheckReserve(env.view(), zones, false)
	g.Expect(kept).To(BeFalse(), "neither the NodeClass nor the settings keep a reserve")
}
