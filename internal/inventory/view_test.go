// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// viewOf returns a View of region r.
func viewOf(t *testing.T, s *inventory.Snapshot, settings string, reservations ...inventory.Reservation) inventory.View {
	t.Helper()
	parsed := inventory.Settings{}
	if settings != "" {
		var err error
		if parsed, err = inventory.ParseSettings([]byte(settings)); err != nil {
			t.Fatal(err)
		}
	}
	byClaim := map[string]inventory.Reservation{}
	for _, r := range reservations {
		byClaim[r.ClaimUID] = r
	}
	return inventory.NewView(map[string]*inventory.Snapshot{"r": s}, nil, byClaim, parsed)
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
		ok, reason := v.Usable("r", name)
		g.Expect(ok).To(Equal(want == ""), "%s: usable", name)
		g.Expect(reason).To(ContainSubstring(want), "%s: usable", name)
	}
	ok, reason := v.Usable("elsewhere", "pve1")
	g.Expect(ok).To(BeFalse())
	g.Expect(reason).To(ContainSubstring("elsewhere was not read yet"))
}

func TestUsableAfterFailedPolls(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := snapshotOf(nil, []proxmox.HostRow{host("pve1", 8, 32)})
	usable := func(count int, cause error) bool {
		failures := map[string]error{"r": &inventory.PollError{Region: "r", Since: start, Count: count, Err: cause}}
		ok, _ := inventory.NewView(map[string]*inventory.Snapshot{"r": s}, failures, nil, inventory.Settings{}).Usable("r", "pve1")
		return ok
	}
	g.Expect(usable(1, proxmox.ErrUnreachable)).To(BeTrue(), "the Host is unusable after one failed poll")
	g.Expect(usable(2, proxmox.ErrUnreachable)).To(BeFalse(), "the Host is usable after two failed polls")
	g.Expect(usable(1, errors.Join(errors.New("401"), proxmox.ErrUnauthorized))).To(BeFalse(), "the Host is usable with invalid credentials")
}

func TestFreeWithSettings(t *testing.T) {
	t.Parallel()
	s := snapshotOf(nil, []proxmox.HostRow{host("pve1", 10, 64)}, vm(100, "pve1", "running", 4, 8))
	for name, c := range map[string]struct {
		settings    string
		allocatable inventory.Amount
	}{
		"defaults":          {"", amount(10, 63)},
		"reserved":          {`{"r": {"pve1": {"reservedcpus": [0, 1], "reservedmemory": "4Gi"}}}`, amount(8, 60)},
		"ratios":            {`{"*": {"*": {"cpuratio": 1.1, "memoryratio": 0.5, "reservedmemory": 0}}}`, amount(11, 32)},
		"reserved_too_much": {`{"r": {"pve1": {"reservedmemory": "128Gi"}}}`, amount(10, 0)},
		"other_host":        {`{"r": {"pve2": {"cpuratio": 4}}}`, amount(10, 63)},
		"other_region":      {`{"q": {"pve1": {"cpuratio": 4}}}`, amount(10, 63)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			v := viewOf(t, s, c.settings)
			g.Expect(hostState(v, "pve1").Allocatable).To(Equal(c.allocatable))
			g.Expect(hostState(v, "pve1").Free).To(Equal(c.allocatable.Minus(amount(4, 8))))
		})
	}
}

func TestFreeWithReservation(t *testing.T) {
	t.Parallel()
	hosts := []proxmox.HostRow{host("pve1", 16, 65)}
	r := inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Amount: amount(8, 16)}
	for name, c := range map[string]struct {
		guests    []proxmox.GuestRow
		fulfilled bool
		free      inventory.Amount
	}{
		"VM_not_visible":           {nil, false, amount(8, 48)},
		"VM_without_resources":     {[]proxmox.GuestRow{rowWithoutResources(20001)}, false, amount(8, 48)},
		"VM_with_size_of_template": {[]proxmox.GuestRow{vm(20001, "pve1", "stopped", 1, 32)}, false, amount(8, 32)},
		"VM_fulfilled":             {[]proxmox.GuestRow{vm(20001, "pve1", "running", 8, 16)}, true, amount(8, 48)},
		"VM_fulfilled_and_deleted": {nil, true, amount(16, 64)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			r := r
			r.Fulfilled = c.fulfilled
			v := viewOf(t, snapshotOf(nil, hosts, c.guests...), "", r)
			g.Expect(hostState(v, "pve1").Free).To(Equal(c.free))
			g.Expect([]bool{v.IsVMIDTaken("r", 20001), v.IsVMIDTaken("r", 20002), v.IsVMIDTaken("q", 20001)}).To(Equal([]bool{true, false, false}))
			g.Expect(v.NodePoolVMs("r", "pve1", "p")).To(BeEquivalentTo(1))
		})
	}
}

func TestNodePoolVMsAfterMigration(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := inventory.Reservation{ClaimUID: "a", NodePool: "p", Region: "r", Host: "pve1", VMID: 20001, Fulfilled: true}
	v := viewOf(t, snapshotOf(nil, []proxmox.HostRow{host("pve1", 8, 32), host("pve2", 8, 32)}, vm(20001, "pve2", "running", 2, 4)), "", r)
	g.Expect(v.NodePoolVMs("r", "pve1", "p")).To(BeZero(), "the VM counts on its previous Host")
	g.Expect(v.NodePoolVMs("r", "pve2", "p")).To(BeEquivalentTo(1), "the VM counts on its previous Host")
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
	s := inventory.NewSnapshot(inventory.PollResult{Resources: proxmox.Resources{
		Hosts: []proxmox.HostRow{host("pve1", 8, 32), host("pve2", 8, 32)},
		Storages: []proxmox.StorageRow{
			storage("thin", "pve1", "lvmthin", false), storage("thin", "pve2", "lvmthin", false),
			storage("thick", "pve1", "lvm", false),
			storage("ceph", "pve1", "rbd", true), storage("ceph", "pve2", "rbd", true), down,
		},
	}}, nil, ownRange)
	reserve := func(uid, hostName, name string, vmid int, fulfilled bool) inventory.Reservation {
		return inventory.Reservation{
			ClaimUID: uid, Region: "r", Host: hostName, Storage: name, VMID: vmid, DiskBytes: 100 * gib, Fulfilled: fulfilled,
		}
	}
	reservations := []inventory.Reservation{
		reserve("a", "pve1", "thin", 1, false), reserve("b", "pve1", "thick", 2, false),
		reserve("c", "pve2", "ceph", 3, false), reserve("d", "pve1", "ceph", 4, true),
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
		{"pve1", "ceph", 700, 850}, // a shared storage counts the reservations of all Hosts
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
	ok, _ := v.Usable("r", "pve1")
	_, storage := v.Storage("r", "pve1", "local")
	if ok || storage || v.IsVMIDTaken("r", 1) || v.Hosts() != nil || v.NodePoolVMs("r", "pve1", "p") != 0 || hostState(v, "pve1").Free.CPUs != 0 {
		t.Error("the zero View is not empty")
	}
}
