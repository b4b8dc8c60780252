// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// savedSnapshot returns a Snapshot with something in every field that a plan uses.
func savedSnapshot() *inventory.Snapshot {
	return inventory.NewSnapshot(inventory.PollResult{
		Region: "home", Taken: time.Date(2026, 11, 16, 5, 0, 0, 0, time.UTC), Version: proxmox.Version{Release: "9.2", Full: "9.2.11"},
		Options: proxmox.ClusterOptions{MACPrefix: "BC:24:11"},
		Facts: &inventory.Facts{
			Permissions: proxmox.Permissions{"/": {"VM.Clone": true}},
			Bridges:     map[string]map[string]proxmox.Bridge{"pve1": {"vmbr0": {Name: "vmbr0", CIDR4: netip.MustParsePrefix("10.0.0.1/24")}}},
			Snippets:    map[inventory.StorageKey]map[string]bool{{Host: "pve1", Storage: "local"}: {"local:snippets/a": true}},
		},
		Resources: proxmox.Resources{
			Hosts: []proxmox.HostRow{{Name: "pve1", Online: true, CPUs: 8, MemoryBytes: 32 << 30}, {Name: "pve2", Online: true, CPUs: 8, MemoryBytes: 32 << 30}},
			Guests: []proxmox.GuestRow{
				{VMID: 100, Kind: proxmox.KindQEMU, Name: "db", Host: "pve1", Status: "running", CPUs: 2, MemoryBytes: 4 << 30},
				{VMID: 9000, Kind: proxmox.KindQEMU, Name: "ubuntu", Host: "pve1", Status: "stopped", Template: true},
			},
			Storages: []proxmox.StorageRow{{Name: "local", Host: "pve1", Type: "dir", TotalBytes: 100 << 30, UsedBytes: 10 << 30}},
		},
		Configs: map[int]*proxmox.VMConfig{9000: {Options: map[string]string{"template": "1", "memory": "2048"}, Digest: "abc"}},
	}, nil, inventory.VMIDRange{})
}

func TestSnapshotJSON(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	snapshot := savedSnapshot()
	content, err := json.Marshal(snapshot)
	g.Expect(err).NotTo(HaveOccurred())
	restored := &inventory.Snapshot{}
	g.Expect(json.Unmarshal(content, restored)).To(Succeed())
	g.Expect(snapshot).To(Equal(restored))
	g.Expect(json.Unmarshal([]byte(`{"Storages": {"local": {}}}`), restored)).To(MatchError(`found storage "local", want HOST/STORAGE`))
}

func TestFixed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	snapshot := savedSnapshot()
	offline, ok := snapshot.WithHostOffline("pve2")
	g.Expect(ok).To(BeTrue(), "pve2 is not in the snapshot")
	if _, ok := snapshot.WithHostOffline("pve9"); ok {
		t.Error("pve9 is in the snapshot")
	}
	inv, err := inventory.NewFixed(map[string]*inventory.Snapshot{"home": offline}, inventory.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(inv.RefreshAll(t.Context())).To(Succeed())
	view := inv.View()
	host, _ := view.Host("home", "pve1")
	g.Expect(host.Free.CPUs).To(Equal(6))
	if ok, reason := view.Usable("home", "pve2"); ok || reason == "" {
		t.Error("a lost host is usable")
	}
	host, _ = view.Host("home", "pve2")
	g.Expect(host.OfflineSince).To(BeTemporally("==", snapshot.Taken))
	if ok, _ := inventory.NewView(map[string]*inventory.Snapshot{"home": snapshot}, nil, nil, inventory.Settings{}).Usable("home", "pve2"); !ok {
		t.Error("the original snapshot was changed")
	}
	inv.Ledger().ObserveDeleted("home", 100)
	host, _ = inv.View().Host("home", "pve1")
	g.Expect(host.Free.CPUs).To(Equal(8), "after the deletion")
}
