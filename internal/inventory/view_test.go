// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// viewOf returns a View of region r.
func viewOf(t *testing.T, s *observed.Snapshot, settings string, reservations ...inventory.Reservation) inventory.View {
	t.Helper()
	parsed := declared.Settings{}
	if settings != "" {
		var err error
		if parsed, err = declared.ParseSettings([]byte(settings)); err != nil {
			t.Fatal(err)
		}
	}
	byClaim := map[string]inventory.Reservation{}
	for _, r := range reservations {
		byClaim[r.ClaimUID] = r
	}
	return inventory.NewView(map[string]*observed.Snapshot{"r": s}, nil, byClaim, parsed, declared.Records{})
}

func TestUsable(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	inMaintenance, offline := host("pve3", 8, 32), host("pve4", 8, 32)
	inMaintenance.Maintenance, offline.Online = true, false
	s := snapshotOf(nil, []proxmox.HostRow{
		host("pve1", 8, 32), host("pve2", 8, 32), inMaintenance, offline, {Name: "pve5", Online: true},
	})
	v := viewOf(t, s, `{"r": {"pve2": {"excluded": true}}}`)
	for name, want := range map[string]string{
		"pve1": "", "pve2": "excluded by settings", "pve3": "in maintenance", "pve4": "offline",
		"pve5": "Sys.Audit on /nodes/pve5", "pve6": "region r has no such host",
	} {
		if want == "" {
			g.Expect(unusable(v, name)).To(BeEmpty(), name)
		}
		g.Expect(unusable(v, name)).To(ContainSubstring(want), name)
	}
	elsewhere, _ := v.Host("elsewhere", "pve1")
	g.Expect(elsewhere.Obstacle(inventory.Launch).Message).To(ContainSubstring("elsewhere was not read yet"))
}

func TestFreeWithSettings(t *testing.T) {
	t.Parallel()
	s := snapshotOf(nil, []proxmox.HostRow{host("pve1", 10, 64)}, vm(100, "pve1", "running", 4, 8))
	for name, c := range map[string]struct {
		settings    string
		allocatable observed.Amount
	}{
		"defaults":          {"", amount(10, 63)},
		"reserved":          {`{"r": {"pve1": {"reservedcpus": [0, 1], "reservedmemory": "4Gi"}}}`, amount(8, 60)},
		"ratios":            {`{"*": {"*": {"cpuratio": 1.1, "memoryratio": 0.5, "reservedmemory": 0}}}`, amount(11, 32)},
		"reserved_too_much": {`{"r": {"pve1": {"reservedmemory": "128Gi"}}}`, amount(10, 0)},
		"other_host":        {`{"r": {"pve2": {"cpuratio": 4}}}`, amount(10, 63)},
		"other_region":      {`{"q": {"pve1": {"cpuratio": 4}}}`, amount(10, 63)},
	} {
		NewWithT(t).Expect(hostState(viewOf(t, s, c.settings), "pve1")).
			To(And(HaveField("Allocatable", c.allocatable), HaveField("Free", c.allocatable.Minus(amount(4, 8)))), name)
	}
}

func TestNodePoolVMsAfterMigration(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Fulfilled: true}
	v := viewOf(t, snapshotOf(nil, []proxmox.HostRow{host("pve1", 8, 32), host("pve2", 8, 32)}, vm(20001, "pve2", "running", 2, 4)), "", r)
	g.Expect(v.NodePoolVMs("r", "pve1", "p")).To(BeZero())
	g.Expect(v.NodePoolVMs("r", "pve2", "p")).To(Equal(1))
}

func TestStorageFree(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	storage := func(name, hostName, kind string, shared bool) proxmox.StorageRow {
		return proxmox.StorageRow{
			Name: name, Host: hostName, Type: kind, Shared: shared, Available: true, TotalBytes: 1000 * gib, UsedBytes: 100 * gib,
		}
	}
	down := storage("down", "pve1", "nfs", true)
	down.Available = false
	s := observed.NewSnapshot(observed.Result{Resources: proxmox.Resources{
		Hosts: []proxmox.HostRow{host("pve1", 8, 32), host("pve2", 8, 32)},
		Storages: []proxmox.StorageRow{
			storage("thin", "pve1", "lvmthin", false), storage("thin", "pve2", "lvmthin", false),
			storage("thick", "pve1", "lvm", false),
			storage("ceph", "pve1", "rbd", true), storage("ceph", "pve2", "rbd", true), down,
		},
	}}, nil, ownRange)
	const size = 100 * gib
	reservations := []inventory.Reservation{
		{ClaimUID: "a", Region: "r", Host: "pve1", VMID: 1, Storage: "thin", DiskBytes: size},
		{ClaimUID: "b", Region: "r", Host: "pve1", VMID: 2, Storage: "thick", DiskBytes: size},
		{ClaimUID: "c", Region: "r", Host: "pve2", VMID: 3, Storage: "ceph", DiskBytes: size},
		{ClaimUID: "d", Region: "r", Host: "pve1", VMID: 4, Storage: "ceph", DiskBytes: size, Fulfilled: true},
		{ClaimUID: "e", Region: "r", Host: "pve2", VMID: 5, Storage: "thin", Disks: []inventory.ReservedDisk{{Storage: "ceph", Bytes: 200 * gib}}},
	}
	v := viewOf(t, s, "", reservations...)
	half := viewOf(t, s, `{"r": {"*": {"storagethinfactor": 0.5, "storagehighwater": 1}}}`, reservations...)
	for _, c := range []struct {
		host, storage string
		free, half    int64
	}{
		{"pve1", "thin", 700, 850},
		{"pve2", "thin", 800, 900}, // a local storage is separate on each Host
		{"pve1", "thick", 700, 800},
		{"pve1", "ceph", 500, 750}, // a shared storage counts the reservations of all Hosts
	} {
		for view, free := range map[*inventory.View]int64{&v: c.free, &half: c.half} {
			got, _ := view.Storage("r", c.host, c.storage)
			g.Expect(got).To(And(HaveField("Available", true), HaveField("FreeBytes", free*gib)), "%s on %s", c.storage, c.host)
		}
	}
	for _, name := range []string{"down", "none"} {
		got, _ := v.Storage("r", "pve1", name)
		g.Expect(got.Available).To(BeFalse(), name)
	}
}

func TestZeroView(t *testing.T) {
	t.Parallel()
	var v inventory.View
	_, ok := v.Host("r", "pve1")
	_, storage := v.Storage("r", "pve1", "local")
	if ok || storage || v.IsVMIDTaken("r", 1) || v.Hosts() != nil || v.NodePoolVMs("r", "pve1", "p") != 0 || hostState(v, "pve1").Free.CPUs != 0 {
		t.Error("the zero View is not empty")
	}
}

func TestWithout(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ours := vm(20000, "pve1", "running", 2, 4)
	s := observed.NewSnapshot(observed.Result{
		Resources:         proxmox.Resources{Hosts: []proxmox.HostRow{host("pve1", 8, 32)}, Guests: []proxmox.GuestRow{ours, vm(100, "pve1", "running", 2, 4)}},
		ReportedAddresses: observed.ReportedAddresses{Guests: map[int][]netip.Addr{20000: {addr("10.0.0.20")}}},
	}, nil, ownRange)
	v := viewOf(t, s, "",
		inventory.Reservation{ClaimUID: "a", Region: "r", Host: "pve1", VMID: 20000, NodePool: "p", Amount: amount(2, 4), Fulfilled: true},
		inventory.Reservation{ClaimUID: "b", Region: "r", Host: "pve1", VMID: 20001, NodePool: "p", Amount: amount(1, 1)},
	)
	free := hostState(v, "pve1").Free
	for name, c := range map[string]struct {
		vmid int
		want observed.Amount
	}{
		"VM":                  {20000, free.Plus(amount(2, 4))},
		"VM_not_launched_yet": {20001, free.Plus(amount(1, 1))},
		"unknown_VM":          {20002, free},
	} {
		after := v.Without("r", c.vmid)
		g.Expect(hostState(after, "pve1").Free).To(Equal(c.want), name)
		g.Expect(after.IsVMIDTaken("r", c.vmid)).To(BeFalse(), "%s: the VMID is taken", name)
	}
	if address := addr("10.0.0.20"); !v.Addresses().IsTaken(address) || v.Without("r", 20000).Addresses().IsTaken(address) {
		t.Error("the address must be taken only with the VM")
	}
	if !v.IsVMIDTaken("r", 20000) || len(v.Reservations) != 2 || len(s.Guests) != 2 {
		t.Error("the View was changed")
	}
}
