// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func mapping(id string, paths ...string) proxmox.PCIMapping {
	m := proxmox.PCIMapping{ID: id}
	for _, path := range paths {
		m.Devices = append(m.Devices, proxmox.PCIDevice{Host: "pve1", Path: path})
	}
	return m
}

func TestFreeDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	mediated := mapping("vgpu", "0000:90:00.0")
	mediated.Mediated = true
	for name, c := range map[string]struct {
		mappings []proxmox.PCIMapping
		guests   map[int]proxmox.VMConfig // VMIDs from 20000 are ours
		status   string
		host     string // of the guests; by default pve1
		reserved []string
		want     map[string]int
	}{
		"all_free": {mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00.0")}, want: map[string]int{"gpu": 2}},
		"used_by_mapping": {
			mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00.0")},
			guests:   map[int]proxmox.VMConfig{100: config("hostpci0", "mapping=gpu,pcie=1"), 20001: config("hostpci3", "mapping=gpu")},
			want:     map[string]int{"gpu": 0},
		},
		"stopped_VM_of_ours_keeps_its_device": {
			mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00.0")},
			guests:   map[int]proxmox.VMConfig{100: config("hostpci0", "mapping=gpu"), 20001: config("hostpci0", "mapping=gpu")},
			status:   "stopped",
			want:     map[string]int{"gpu": 1},
		},
		"used_by_address": {
			mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00", "0000:03:00.0;0000:03:00.1", "0000:04:00.0")},
			guests:   map[int]proxmox.VMConfig{100: config("hostpci0", "01:00", "hostpci1", "host=0000:02:00.1,pcie=1", "hostpci2", "0000:03:00.1")},
			want:     map[string]int{"gpu": 1},
		},
		"device_in_two_mappings": {
			mappings: []proxmox.PCIMapping{mapping("any", "0000:01:00.0", "0000:02:00.0"), mapping("big", "0000:02:00.0")},
			guests:   map[int]proxmox.VMConfig{100: config("hostpci0", "mapping=any")},
			want:     map[string]int{"any": 1, "big": 0},
		},
		"mediated_devices_not_counted": {mappings: []proxmox.PCIMapping{mediated}, want: nil},
		"reserved": {
			mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")},
			reserved: []string{"gpu", "gpu"},
			want:     map[string]int{"gpu": 1},
		},
		"reserved_and_cloned_to_this_host": {
			mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")},
			guests:   map[int]proxmox.VMConfig{20009: config("hostpci0", "mapping=gpu", "hostpci1", "mapping=gpu")},
			host:     "pve2",
			reserved: []string{"gpu", "gpu"},
			want:     map[string]int{"gpu": 1},
		},
		"reserved_and_visible": {
			mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")},
			guests:   map[int]proxmox.VMConfig{20009: config("hostpci0", "mapping=gpu", "hostpci1", "mapping=gpu")},
			reserved: []string{"gpu", "gpu"},
			want:     map[string]int{"gpu": 1},
		},
		"reserved_and_not_configured_yet": {
			mappings: []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")},
			guests:   map[int]proxmox.VMConfig{20009: config("name", "clone")},
			reserved: []string{"gpu", "gpu"},
			want:     map[string]int{"gpu": 1},
		},
	} {
		configs := map[int]*proxmox.VMConfig{}
		var rows []proxmox.GuestRow
		for vmid, cfg := range c.guests {
			rows = append(rows, vm(vmid, cmp.Or(c.host, "pve1"), cmp.Or(c.status, "running"), 1, 1))
			configs[vmid] = &cfg
		}
		snapshot := inventory.NewSnapshot(inventory.PollResult{
			Region: "r", Taken: start, Configs: configs, Mappings: c.mappings,
			Resources: proxmox.Resources{Hosts: []proxmox.HostRow{host("pve1", 64, 64)}, Guests: rows},
		}, nil, ownRange)
		reservations := map[string]inventory.Reservation{}
		if c.reserved != nil {
			reservations["a"] = inventory.Reservation{ClaimUID: "a", Region: "r", Host: "pve1", VMID: 20009, Devices: c.reserved}
		}
		view := inventory.NewView(map[string]*inventory.Snapshot{"r": snapshot}, nil, reservations, inventory.Settings{})
		state, _ := view.Host("r", "pve1")
		g.Expect(state.FreeDevices).To(Equal(c.want), "%s: free devices", name)
	}
}

func TestMappingsInterval(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, clock := newPolled(t, c)
	c.change(func() { c.mappings = []proxmox.PCIMapping{mapping("gpu", "0000:01:00.0")} })
	generation := i.View().Generation
	refresh(t, i)
	g := NewWithT(t)
	g.Expect(i.View().Generation).To(Equal(generation), "the mappings were read again immediately")
	pollFor(t, i, clock, 6*time.Minute)
	g.Expect(hostState(i.View(), "pve1").FreeDevices).To(HaveKeyWithValue("gpu", 1))
	g.Expect(i.View().Generation).NotTo(Equal(generation))
}

func TestMaintenance(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for _, release := range []string{"8.4", "9.2"} {
		c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
		c.release = release
		i, clock := newPolled(t, c)
		c.change(func() {
			c.drained = []string{"pve2"}
			c.resources.Hosts[1].Maintenance = release == "9.2" // not in the rows of older releases
		})
		clock.Step(time.Minute)
		refresh(t, i)
		g.Expect(hostState(i.View(), "pve2").Unusable).To(Equal("in maintenance"), release)
		since := clock.Now()
		clock.Step(time.Minute)
		refresh(t, i)
		g.Expect(hostState(i.View(), "pve2").OutOfServiceSince).To(BeTemporally("==", since), release)
		g.Expect(slices.Contains(c.takeCalls(), "maintenance")).To(Equal(release == "8.4"))
		c.change(func() { c.drained, c.resources.Hosts[1].Maintenance = nil, false })
		clock.Step(time.Minute)
		refresh(t, i)
		g.Expect(hostState(i.View(), "pve2")).To(And(HaveField("Unusable", BeEmpty()), HaveField("OutOfServiceSince", BeZero())), release)
	}
}
