// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
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
	mediated := mapping("vgpu", "0000:90:00.0")
	mediated.Mediated = true
	one := mapping("gpu", "0000:01:00.0", "0000:02:00.0")
	three := mapping("gpu", "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
	both := config("hostpci0", "mapping=gpu", "hostpci1", "mapping=gpu")
	type mappings = []proxmox.PCIMapping
	type guests = map[int]proxmox.VMConfig // VMIDs from 20000 are ours
	type free = map[string]int
	for name, c := range map[string]struct {
		mappings mappings
		guests   guests
		change   func(*proxmox.GuestRow)
		reserved []string
		want     free
	}{
		"all_free": {mappings: mappings{one}, want: free{"gpu": 2}},
		"used_by_mapping": {
			mappings: mappings{one}, want: free{"gpu": 0},
			guests: guests{100: config("hostpci0", "mapping=gpu,pcie=1"), 20001: config("hostpci3", "mapping=gpu")},
		},
		"stopped_VM_of_ours_keeps_its_device": {
			mappings: mappings{one}, want: free{"gpu": 1}, change: func(r *proxmox.GuestRow) { r.Status = "stopped" },
			guests: guests{100: config("hostpci0", "mapping=gpu"), 20001: config("hostpci0", "mapping=gpu")},
		},
		"used_by_address": {
			mappings: mappings{mapping("gpu", "0000:01:00.0", "0000:02:00", "0000:03:00.0;0000:03:00.1", "0000:04:00.0")},
			guests:   guests{100: config("hostpci0", "01:00", "hostpci1", "host=0000:02:00.1,pcie=1", "hostpci2", "0000:03:00.1")},
			want:     free{"gpu": 1},
		},
		"device_in_two_mappings": {
			mappings: mappings{mapping("any", "0000:01:00.0", "0000:02:00.0"), mapping("big", "0000:02:00.0")},
			guests:   guests{100: config("hostpci0", "mapping=any")}, want: free{"any": 1, "big": 0},
		},
		"mediated_devices_not_counted": {mappings: mappings{mediated}},
		"reserved":                     {mappings: mappings{three}, reserved: []string{"gpu", "gpu"}, want: free{"gpu": 1}},
		"reserved_and_cloned_to_this_host": {
			mappings: mappings{three}, guests: guests{20009: both}, reserved: []string{"gpu", "gpu"}, want: free{"gpu": 1},
			change: func(r *proxmox.GuestRow) { r.Host = "pve2" },
		},
		"reserved_and_visible": {
			mappings: mappings{three}, guests: guests{20009: both}, reserved: []string{"gpu", "gpu"}, want: free{"gpu": 1},
		},
		"reserved_and_not_configured_yet": {
			mappings: mappings{three}, guests: guests{20009: {}}, reserved: []string{"gpu", "gpu"}, want: free{"gpu": 1},
		},
	} {
		configs := map[int]*proxmox.VMConfig{}
		var rows []proxmox.GuestRow
		for vmid, cfg := range c.guests {
			row := vm(vmid, "pve1", "running", 1, 1)
			if c.change != nil {
				c.change(&row)
			}
			rows, configs[vmid] = append(rows, row), &cfg
		}
		snapshot := observed.NewSnapshot(observed.Result{
			Configs: configs, Mappings: c.mappings,
			Resources: proxmox.Resources{Hosts: []proxmox.HostRow{host("pve1", 64, 64)}, Guests: rows},
		}, nil, ownRange)
		var reservations []inventory.Reservation
		if c.reserved != nil {
			reservations = []inventory.Reservation{{Region: "r", Host: "pve1", VMID: 20009, Devices: c.reserved}}
		}
		NewWithT(t).Expect(hostState(viewOf(t, snapshot, "", reservations...), "pve1").FreeDevices).To(Equal(c.want), name)
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
