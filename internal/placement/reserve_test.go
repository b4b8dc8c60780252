// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

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
		"other_host_offline": {
			need: need(5, 8), change: func(env *testEnv) { env.host("r", "pve3", 8, 32); env.region("r").Hosts[2].Online = false },
		},
		"other_host_in_maintenance": {
			need: need(5, 8), change: func(env *testEnv) { env.host("r", "pve3", 8, 32); env.region("r").Hosts[2].Maintenance = true },
		},
		"other_host_excluded": {
			need: need(5, 8), change: func(env *testEnv) { env.host("r", "pve3", 8, 32) }, settings: `{"r": {"pve3": {"excluded": true}}}`, want: refused,
		},
		"other_architecture": {
			need: need(5, 8), change: func(env *testEnv) { env.host("r", "pve3", 8, 32); env.region("r").Hosts[2].Arch = "aarch64" }, want: refused,
		},
		"other_region_is_full": {need: need(4, 8), change: func(env *testEnv) { env.host("q", "pve9", 8, 32); env.guest("q", "pve9", 100, 8, 32) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newEnv()
			for n, host := range []string{"pve1", "pve2"} {
				env.host("r", host, 8, 32)
				env.guest("r", host, 100+n, 2, 8)
			}
			if c.change != nil {
				c.change(env)
			}
			if c.settings != "" {
				var err error
				if env.settings, err = inventory.ParseSettings([]byte(c.settings)); err != nil {
					t.Fatal(err)
				}
			}
			c.need.KeepReserve = !c.none
			view := env.view()
			ok, reason := placement.Fit(view, zone("pve1"), c.need)
			if ok != (c.want == "") || reason != c.want || ok != placement.Fits(view, zone("pve1"), c.need) {
				t.Errorf("fits %v because %q, want %q", ok, reason, c.want)
			}
		})
	}
}

// TestChooseKeepsReserve fills a region: a VM that is launched leaves the reserve free, and
// no VM is launched once it is violated.
func TestChooseKeepsReserve(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	zones := []placement.Zone{zone("pve1"), zone("pve2"), zone("pve3")}
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
	if _, violation := placement.CheckReserve(env.view(), zones, true); violation == "" {
		t.Error("a VM of another user uses the reserve, which is not reported")
	}
	if kept, _ := placement.CheckReserve(env.view(), zones, false); kept {
		t.Error("neither the NodeClass nor the settings keep a reserve")
	}
}
