// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestParseMaintenance(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	hosts, errs := declared.ParseMaintenance(map[string]string{"home.pve1": " new disk\n", "site.a.pve-2": "", "pve1": "", ".pve1": "", "home.": ""})
	want := declared.Maintenance{{Region: "home", Host: "pve1"}: "new disk", {Region: "site.a", Host: "pve-2"}: ""}
	g.Expect(hosts).To(Equal(want))
	g.Expect(errs).To(HaveLen(3))
	for host := range want {
		if parsed, errs := declared.ParseMaintenance(map[string]string{host.Key(): "x"}); parsed[host] != "x" || len(errs) > 0 {
			t.Errorf("key %s of host %s: found %v, %v", host.Key(), host, parsed, errs)
		}
	}
}

// Each valid entry is read again from its key; each other one is named in an error.
func FuzzParseMaintenance(f *testing.F) {
	f.Add("home.pve1", " new disk\n")
	f.Add("site.a.pve-2", "")
	f.Add("home.", "")
	f.Fuzz(func(t *testing.T, key, reason string) {
		hosts, errs := declared.ParseMaintenance(map[string]string{key: reason})
		if len(hosts)+len(errs) != 1 {
			t.Fatalf("%q: found %v and %v", key, hosts, errs)
		}
		for _, err := range errs {
			if !strings.Contains(err.Error(), strconv.Quote(key)) {
				t.Errorf("the error does not name the key %q: %v", key, err)
			}
		}
		for host, why := range hosts {
			if host.Key() != key || host.Region == "" || host.Host == "" || why != strings.TrimSpace(reason) {
				t.Errorf("%q: %q was read as %+v: %q", key, reason, host, why)
			}
		}
	})
}

func TestSetMaintenance(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	i, _ := newPolled(t, newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64)))
	generation := i.View().Generation
	i.SetMaintenance(declared.Maintenance{{Region: "r", Host: "pve1"}: "new disk"})
	g.Expect(hostState(i.View(), "pve1")).To(haveReasons(inventory.InMaintenance))
	g.Expect(unusable(i.View(), "pve1")).To(Equal("in maintenance (requested in Kubernetes: new disk)"))
	g.Expect(hostState(i.View(), "pve2")).To(haveReasons())
	g.Expect(i.View().Generation).NotTo(Equal(generation), "subscribers were not notified")
	refresh(t, i)
	i.SetSettings(declared.Settings{})
	g.Expect(hostState(i.View(), "pve1")).To(haveReasons(inventory.InMaintenance), "after a poll and new settings")
	i.SetMaintenance(nil)
	g.Expect(hostState(i.View(), "pve1")).To(haveReasons())
}

func TestMaintenanceUnreadable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		failure error
		want    []inventory.HostReason
	}{
		"failed":    {errors.New("got timeout"), []inventory.HostReason{inventory.MaintenanceUnknown}},
		"forbidden": {&proxmox.ForbiddenError{}, nil},
	} {
		c := newCluster("r", host("pve1", 16, 64))
		c.release, c.drained, c.failures["maintenance"] = "8.4", []string{"pve1"}, test.failure
		i, clock := newInventory(t, c)
		expect := func(reasons ...inventory.HostReason) {
			t.Helper()
			refresh(t, i)
			clock.Step(time.Minute)
			NewWithT(t).Expect(hostState(i.View(), "pve1")).To(haveReasons(reasons...), name)
		}
		expect(test.want...)
		c.change(func() { c.failures["maintenance"] = nil })
		expect(inventory.InMaintenance)
		c.change(func() { c.drained, c.failures["maintenance"] = nil, test.failure })
		expect(inventory.InMaintenance) // the last known
		c.change(func() { c.failures["maintenance"] = nil })
		expect()
	}
}

func TestMaintenance(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for _, release := range []string{"8.4", "9.2"} {
		c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
		c.release = release
		i, clock := newPolled(t, c)
		pollAfter := func(drained ...string) {
			c.change(func() { // not in the rows of older releases
				c.drained, c.resources.Hosts[1].Maintenance = drained, release == "9.2" && drained != nil
			})
			clock.Step(time.Minute)
			refresh(t, i)
		}
		pollAfter("pve2")
		g.Expect(unusable(i.View(), "pve2")).To(Equal("in maintenance (Proxmox HA maintenance)"), release)
		since := clock.Now()
		pollAfter("pve2")
		g.Expect(hostState(i.View(), "pve2").Obstacle(inventory.Keep).Since).To(BeTemporally("==", since), release)
		g.Expect(slices.Contains(c.takeCalls(), "maintenance")).To(Equal(release == "8.4"))
		pollAfter()
		g.Expect(hostState(i.View(), "pve2")).To(haveReasons(), release)
	}
}
