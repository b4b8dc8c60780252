// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// A Host that was shut down to save energy keeps its size, cells, storages and templates, also if no
// earlier Snapshot shows them. It is in service, so it counts for the reserve.
func TestKnownHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const region, host = "r", "pve2"
	topology, err := hosttopology.Read(strings.Replace(topologyLine(twoCells), "pve1", host, 1), host)
	g.Expect(err).NotTo(HaveOccurred())
	online := inventory.PollResult{
		Region: region, Configs: map[int]*proxmox.VMConfig{9000: {Options: map[string]string{"template": "1", "name": "ubuntu"}}},
		Facts: &inventory.Facts{Topologies: map[string]inventory.PublishedTopology{host: {Topology: topology}}},
		Resources: proxmox.Resources{
			Hosts: []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: 8, MemoryBytes: 64 << 30}, {Name: host, Online: true, CPUs: 8, MemoryBytes: 64 << 30, Arch: "aarch64"}},
			Guests: []proxmox.GuestRow{
				{VMID: 9000, Kind: proxmox.KindQEMU, Host: host, Status: "stopped", Template: true, CPUs: 1, MemoryBytes: 1 << 30},
				{VMID: 100, Kind: proxmox.KindQEMU, Host: host, Status: "stopped", CPUs: 4, MemoryBytes: 1 << 30},
			},
			Storages: []proxmox.StorageRow{
				{Name: "local", Host: host, Type: "dir", Content: []string{"images"}, Available: true, TotalBytes: 100 << 30, UsedBytes: 10 << 30},
				{Name: "nas", Host: host, Type: "nfs", Content: []string{"images"}, Shared: true, Available: true, TotalBytes: 100 << 30, UsedBytes: 10 << 30},
				{Name: "nas", Host: "pve1", Type: "nfs", Content: []string{"images"}, Shared: true, Available: true, TotalBytes: 100 << 30, UsedBytes: 10 << 30},
			},
		},
	}
	raw, err := json.Marshal(inventory.Sleep{State: inventory.Asleep, Known: inventory.NewSnapshot(online, nil, inventory.VMIDRange{}).KnownHost(host)})
	g.Expect(err).NotTo(HaveOccurred())
	var record inventory.Sleep
	g.Expect(json.Unmarshal(raw, &record)).To(Succeed())
	off := inventory.PollResult{
		Region: region, Taken: start, Known: map[string]inventory.KnownHost{host: record.Known},
		Resources: proxmox.Resources{
			Hosts: []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: 8, MemoryBytes: 64 << 30}, {Name: host}},
			Guests: []proxmox.GuestRow{
				{VMID: 9000, Kind: proxmox.KindQEMU, Host: host, Status: "unknown"}, {VMID: 100, Kind: proxmox.KindQEMU, Host: host, Status: "unknown"},
			},
			Storages: []proxmox.StorageRow{
				{Name: "local", Host: host, Type: "dir", Content: []string{"images"}}, {Name: "nas", Host: host, Type: "nfs", Content: []string{"images"}, Shared: true},
				{Name: "nas", Host: "pve1", Type: "nfs", Content: []string{"images"}, Shared: true, Available: true, TotalBytes: 100 << 30, UsedBytes: 80 << 30},
			},
		},
	}
	without := off
	without.Known = nil
	for name, previous := range map[string]*inventory.Snapshot{
		"restarted": nil, "running": inventory.NewSnapshot(online, nil, inventory.VMIDRange{}), "record_read_late": inventory.NewSnapshot(without, nil, inventory.VMIDRange{}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result := off
			if name == "running" {
				result.Configs = online.Configs
			}
			snapshot := inventory.NewSnapshot(result, previous, inventory.VMIDRange{})
			settings := inventory.Settings{}.WithSleeping(map[inventory.HostName]inventory.Sleep{{Region: region, Host: host}: record})
			view := inventory.NewView(map[string]*inventory.Snapshot{region: snapshot}, nil, nil, settings)
			state, _ := view.Host(region, host)
			if state.Size.CPUs != 8 || state.Free.CPUs != 8 || state.Arch != "arm64" || state.Sleep != inventory.Asleep || state.Unusable != "" || state.OutOfService != "" || state.OfflineSince.IsZero() {
				t.Errorf("the host is %+v", state)
			}
			if cells := view.Cells(region, host); len(cells.Cells) != 2 || !slices.EqualFunc(cells.Cells[1].FreeCores, topology.Cells[1].Cores, cpuset.CPUSet.Equals) {
				t.Errorf("the cells are %+v", cells)
			}
			template, _ := view.Guest(region, 9000)
			if !template.Template || template.Config == nil || template.Config.Options["name"] != "ubuntu" {
				t.Errorf("the template is %+v", template)
			}
			if local, _ := view.Storage(region, host, "local"); !local.Available || local.UsedBytes != 10<<30 {
				t.Errorf("the storage is %+v", local)
			}
			if nas, _ := view.Storage(region, host, "nas"); !nas.Available || nas.UsedBytes != 80<<30 {
				t.Errorf("the shared storage is %+v", nas)
			}
			NewWithT(t).Expect(len(view.Failover(region, host).Unavailable)).To(BeNumerically("<=", 0), "unavailable for the reserve")
		})
	}
}

func TestSleepState(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state  inventory.SleepState
		online bool
		want   inventory.SleepState
		usable bool
	}{
		{"", true, "", true},
		{"", false, "", false},
		{inventory.ShuttingDown, true, inventory.ShuttingDown, true},
		{inventory.ShuttingDown, false, inventory.Asleep, true},
		{inventory.Asleep, false, inventory.Asleep, true},
		{inventory.Waking, false, inventory.Waking, true},
		{inventory.WakeFailed, false, inventory.WakeFailed, false},
	} {
		row := proxmox.HostRow{Name: "pve1", Online: test.online, CPUs: 8, MemoryBytes: 64 << 30}
		snapshot := inventory.NewSnapshot(inventory.PollResult{Region: "r", Resources: proxmox.Resources{Hosts: []proxmox.HostRow{row}}}, nil, inventory.VMIDRange{})
		settings := inventory.Settings{}
		if test.state != "" {
			settings = settings.WithSleeping(map[inventory.HostName]inventory.Sleep{{Region: "r", Host: "pve1"}: {State: test.state}})
		}
		state, _ := inventory.NewView(map[string]*inventory.Snapshot{"r": snapshot}, nil, nil, settings).Host("r", "pve1")
		if state.Sleep != test.want || (state.Unusable == "") != test.usable || (state.OutOfService == "") != test.usable {
			t.Errorf("%s, online %v: %+v", test.state, test.online, state)
		}
	}
}

// Proxmox reports the rows of a Host that was shut down for some minutes, but not its
// configurations: those of the record count, so its templates can be used after a restart.
func TestKnownTemplateOfSleepingHost(t *testing.T) {
	t.Parallel()
	options := config("template", "1")
	asleep := host("pve1", 4, 8)
	asleep.Online = false
	s := inventory.NewSnapshot(inventory.PollResult{
		Region: "r", Taken: start, Resources: proxmox.Resources{Hosts: []proxmox.HostRow{asleep}, Guests: []proxmox.GuestRow{template(900)}},
		Known: map[string]inventory.KnownHost{"pve1": {Host: asleep, Guests: []inventory.KnownGuest{{GuestRow: template(900), Config: &options}}}},
	}, nil, ownRange)
	NewWithT(t).Expect(s.Guests[900].Config).NotTo(BeNil(), "the template has no configuration")
}
