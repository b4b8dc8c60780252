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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// A Host that was shut down to save energy keeps its size, cells, storages and templates, also if no
// earlier Snapshot shows them. It is in service, so it counts for the reserve.
func TestKnownHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	topology, err := hosttopology.Read(strings.Replace(topologyLine(twoCells), "pve1", "pve2", 1), "pve2")
	g.Expect(err).NotTo(HaveOccurred())
	storage := func(name, host string, shared bool, usedGiB int64) proxmox.StorageRow {
		return proxmox.StorageRow{
			Name: name, Host: host, Content: []string{"images"}, Shared: shared, Available: usedGiB > 0, TotalBytes: 100 * gib, UsedBytes: usedGiB * gib,
		}
	}
	arm, tpl := host("pve2", 8, 64), template(9000)
	arm.Arch, tpl.Host = "aarch64", "pve2"
	online := observed.Result{
		Region: "r", Configs: map[int]*proxmox.VMConfig{9000: {Options: map[string]string{"template": "1", "name": "ubuntu"}}},
		Facts: &observed.Facts{Topologies: map[string]observed.PublishedTopology{"pve2": {Topology: topology}}},
		Resources: proxmox.Resources{
			Hosts:    []proxmox.HostRow{host("pve1", 8, 64), arm},
			Guests:   []proxmox.GuestRow{tpl, vm(100, "pve2", "stopped", 4, 1)},
			Storages: []proxmox.StorageRow{storage("local", "pve2", false, 10), storage("nas", "pve2", true, 10), storage("nas", "pve1", true, 10)},
		},
	}
	raw, err := json.Marshal(declared.Sleep{State: declared.Asleep, Known: observed.NewSnapshot(online, nil, observed.VMIDRange{}).KnownHost("pve2")})
	g.Expect(err).NotTo(HaveOccurred())
	var record declared.Sleep
	g.Expect(json.Unmarshal(raw, &record)).To(Succeed())
	off := observed.Result{
		Region: "r", Taken: start, Known: map[string]observed.KnownHost{"pve2": record.Known},
		Resources: proxmox.Resources{
			Hosts: []proxmox.HostRow{host("pve1", 8, 64), {Name: "pve2"}},
			Guests: []proxmox.GuestRow{
				{VMID: 9000, Kind: proxmox.KindQEMU, Host: "pve2", Status: "unknown"}, {VMID: 100, Kind: proxmox.KindQEMU, Host: "pve2", Status: "unknown"},
			},
			Storages: []proxmox.StorageRow{storage("local", "pve2", false, 0), storage("nas", "pve2", true, 0), storage("nas", "pve1", true, 80)},
		},
	}
	without := off
	without.Known = nil
	for name, previous := range map[string]*observed.Snapshot{
		"restarted": nil, "running": observed.NewSnapshot(online, nil, observed.VMIDRange{}), "record_read_late": observed.NewSnapshot(without, nil, observed.VMIDRange{}),
	} {
		result := off
		if name == "running" {
			result.Configs = online.Configs
		}
		snapshot := observed.NewSnapshot(result, previous, observed.VMIDRange{})
		records := declared.Records{Sleeping: map[observed.HostName]declared.Sleep{{Region: "r", Host: "pve2"}: record}}
		view := inventory.NewView(map[string]*observed.Snapshot{"r": snapshot}, nil, nil, declared.Settings{}, records)
		g.Expect(hostState(view, "pve2")).To(And(HaveField("Size.CPUs", 8), HaveField("Free.CPUs", 8), HaveField("Arch", "arm64"),
			HaveField("Sleep", declared.Asleep), haveReasons(inventory.Sleeping, inventory.Off)), name)
		cells := view.Cells("r", "pve2").Cells
		g.Expect(cells).To(HaveLen(2), name)
		g.Expect(slices.EqualFunc(cells[1].FreeCores, topology.Cells[1].Cores, cpuset.CPUSet.Equals)).To(BeTrue(), name)
		found, _ := view.Guest("r", 9000)
		g.Expect(found).To(And(HaveField("Template", true), HaveField("Config.Options", HaveKeyWithValue("name", "ubuntu"))), name)
		for storage, used := range map[string]int64{"local": 10, "nas": 80} {
			state, _ := view.Storage("r", "pve2", storage)
			g.Expect(state).To(And(HaveField("Available", true), HaveField("UsedBytes", used*gib)), "%s: %s", name, storage)
		}
		g.Expect(view.Failover("r", "pve2").Unavailable).To(BeEmpty(), name)
	}
}

func TestSleepState(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state  declared.SleepState
		online bool
		want   declared.SleepState
		usable bool
	}{
		{"", true, "", true},
		{"", false, "", false},
		{declared.ShuttingDown, true, declared.ShuttingDown, true},
		{declared.ShuttingDown, false, declared.Asleep, true},
		{declared.Asleep, false, declared.Asleep, true},
		{declared.Waking, false, declared.Waking, true},
		{declared.WakeFailed, false, declared.WakeFailed, false},
	} {
		row := host("pve1", 8, 64)
		row.Online = test.online
		snapshot := snapshotOf(nil, []proxmox.HostRow{row})
		records := declared.Records{}
		if test.state != "" {
			records.Sleeping = map[observed.HostName]declared.Sleep{{Region: "r", Host: "pve1"}: {State: test.state}}
		}
		state := hostState(inventory.NewView(map[string]*observed.Snapshot{"r": snapshot}, nil, nil, declared.Settings{}, records), "pve1")
		if state.Sleep != test.want || state.IsAvailable(inventory.Launch) != test.usable || state.IsAvailable(inventory.Keep) != test.usable {
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
	s := observed.NewSnapshot(observed.Result{
		Region: "r", Taken: start, Resources: proxmox.Resources{Hosts: []proxmox.HostRow{asleep}, Guests: []proxmox.GuestRow{template(900)}},
		Known: map[string]observed.KnownHost{"pve1": {Host: asleep, Guests: []observed.KnownGuest{{GuestRow: template(900), Config: &options}}}},
	}, nil, ownRange)
	NewWithT(t).Expect(s.Guests[900].Config).NotTo(BeNil(), "the template has no configuration")
}
