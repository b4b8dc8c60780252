// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// savedSnapshot returns a Snapshot with something in every field that a plan uses.
func savedSnapshot() *observed.Snapshot {
	return observed.NewSnapshot(observed.Result{
		Region: "r", Taken: start, Version: proxmox.Version{Release: "9.2", Full: "9.2.11"},
		Options: proxmox.ClusterOptions{MACPrefix: "BC:24:11"},
		Facts: &observed.Facts{
			Permissions: proxmox.Permissions{"/": {"VM.Clone": true}},
			Bridges:     map[string]map[string]proxmox.Bridge{"pve1": {"vmbr0": {Name: "vmbr0", CIDR4: netip.MustParsePrefix("10.0.0.1/24")}}},
			Snippets:    map[observed.StorageKey]map[string]bool{{Host: "pve1", Storage: "local"}: {"local:snippets/a": true}},
		},
		Resources: proxmox.Resources{
			Hosts:    []proxmox.HostRow{host("pve1", 8, 32), host("pve2", 8, 32)},
			Guests:   []proxmox.GuestRow{vm(100, "pve1", "running", 2, 4), template(9000)},
			Storages: []proxmox.StorageRow{{Name: "local", Host: "pve1", Type: "dir", TotalBytes: 100 << 30, UsedBytes: 10 << 30}},
		},
		Configs: map[int]*proxmox.VMConfig{9000: {Options: map[string]string{"template": "1", "memory": "2048"}, Digest: "abc"}},
	}, nil, observed.VMIDRange{})
}

func TestSnapshotJSON(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	snapshot := savedSnapshot()
	content, err := json.Marshal(snapshot)
	g.Expect(err).NotTo(HaveOccurred())
	restored := &observed.Snapshot{}
	g.Expect(json.Unmarshal(content, restored)).To(Succeed())
	g.Expect(snapshot).To(Equal(restored))
	g.Expect(json.Unmarshal([]byte(`{"Storages": {"local": {}}}`), restored)).To(MatchError(`found storage "local", want HOST/STORAGE`))
}

func TestFixed(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	snapshot := savedSnapshot()
	offline, ok := snapshot.WithHostOffline("pve2")
	g.Expect(ok).To(BeTrue())
	_, ok = snapshot.WithHostOffline("pve9")
	g.Expect(ok).To(BeFalse(), "pve9 is in the snapshot")
	inv, err := inventory.NewFixed(map[string]*observed.Snapshot{"r": offline}, inventory.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(inv.RefreshAll(t.Context())).To(Succeed())
	g.Expect(hostState(inv.View(), "pve1").Free.CPUs).To(Equal(6))
	g.Expect(hostState(inv.View(), "pve2")).To(haveReasons(inventory.Offline, inventory.Off))
	g.Expect(hostState(inv.View(), "pve2").Obstacle(inventory.Keep).Since).To(BeTemporally("==", snapshot.Taken))
	g.Expect(hostState(viewOf(t, snapshot, ""), "pve2")).To(haveReasons(), "the original snapshot was changed")
	inv.Ledger().ObserveDeleted("r", 100)
	g.Expect(hostState(inv.View(), "pve1").Free.CPUs).To(Equal(8), "after the deletion")
}
