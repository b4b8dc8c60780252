// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestAllocation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		guest proxmox.GuestRow
		want  observed.Amount
	}{
		"running_VM_of_another_user":  {vm(100, "pve1", "running", 4, 8), amount(4, 8)},
		"paused_VM":                   {vm(100, "pve1", "paused", 4, 8), amount(4, 8)},
		"stopped_VM_of_another_user":  {vm(100, "pve1", "stopped", 4, 8), amount(0, 0)},
		"running_VM_of_ours":          {vm(20001, "pve1", "running", 4, 8), amount(4, 8)},
		"stopped_VM_of_ours":          {vm(20001, "pve1", "stopped", 4, 8), amount(4, 8)},
		"template":                    {template(100), amount(0, 0)},
		"template_in_our_range":       {template(20001), amount(0, 0)},
		"container":                   {container(100, 2, 3), amount(2, 3)},
		"container_without_CPU_limit": {container(100, 16, 3), amount(0, 3)},
		"row_without_resources":       {rowWithoutResources(100), amount(0, 0)},
	} {
		s := snapshotOf(nil, []proxmox.HostRow{host("pve1", 16, 64)}, c.guest)
		NewWithT(t).Expect(s.Hosts["pve1"].Allocated).To(Equal(c.want), name)
	}
}

func TestAllocationOfStaleRow(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	hosts := []proxmox.HostRow{host("pve1", 16, 64)}
	running, stopped, tpl := vm(100, "pve1", "running", 4, 8), vm(101, "pve1", "stopped", 2, 4), template(900)
	before := snapshotOf(nil, hosts, running, stopped, tpl)

	// The values must survive more than one such poll.
	after := before
	for range 2 {
		after = snapshotOf(after, hosts, rowWithoutResources(100), rowWithoutResources(101), rowWithoutResources(900))
	}
	g.Expect(after.Hosts["pve1"].Allocated).To(Equal(amount(4, 8)))
	g.Expect(after.Guests[100]).To(And(HaveField("Stale", true), HaveField("Name", "vm-100"), HaveField("CPUs", 4), HaveField("Status", "unknown")))
	g.Expect(after.Guests[900].Template).To(BeTrue(), "the template lost its flag")

	fresh := snapshotOf(after, hosts, vm(100, "pve1", "stopped", 4, 8))
	g.Expect(fresh.Guests[100]).To(And(HaveField("Stale", false), HaveField("Allocated", observed.Amount{})))
	row := rowWithoutResources(100)
	row.Kind = proxmox.KindLXC
	g.Expect(snapshotOf(before, hosts, row).Guests[100].Stale).To(BeFalse(), "a container inherited the resources of a VM with its VMID")
	g.Expect(snapshotOf(before, []proxmox.HostRow{{Name: "pve1"}}, rowWithoutResources(100)).Hosts["pve1"]).
		To(And(HaveField("Online", false), HaveField("CPUs", 16), HaveField("MemoryBytes", 64*gib), HaveField("Allocated", amount(4, 8))))
}

// The guests of others that a restarted host has not started yet keep their place.
func TestAllocationOfRestartedHost(t *testing.T) {
	t.Parallel()
	up := func(uptime int64) []proxmox.HostRow {
		pve1, pve2 := host("pve1", 16, 64), host("pve2", 16, 64)
		pve1.UptimeSeconds, pve2.UptimeSeconds = uptime, uptime
		return []proxmox.HostRow{pve1, pve2}
	}
	running, stopped := vm(100, "pve1", "running", 4, 8), vm(101, "pve1", "stopped", 2, 4)
	before := snapshotOf(nil, up(100_000), running, stopped)
	running.Status = "stopped"
	restarted := before
	for range 2 {
		restarted = snapshotOf(restarted, up(60), running, stopped)
	}
	moved := running
	moved.Host = "pve2"
	for name, c := range map[string]struct {
		snapshot *observed.Snapshot
		want     observed.Amount
	}{
		"stopped_by_its_owner": {snapshotOf(before, up(100_060), running, stopped), amount(0, 0)},
		"restarted":            {restarted, amount(4, 8)},
		"never_started":        {snapshotOf(restarted, up(900), running, stopped), amount(0, 0)},
		"first_poll":           {snapshotOf(nil, up(60), running, stopped), amount(0, 0)},
		"moved":                {snapshotOf(before, up(60), moved, stopped), amount(0, 0)},
	} {
		allocated := c.snapshot.Hosts["pve1"].Allocated.Plus(c.snapshot.Hosts["pve2"].Allocated)
		NewWithT(t).Expect(allocated).To(Equal(c.want), "%s: the hosts have allocated", name)
	}
}

func TestAllocationFromConfig(t *testing.T) {
	t.Parallel()
	c := config("cores", "2", "sockets", "2", "memory", "4096")
	s := observed.NewSnapshot(observed.Result{
		Resources: proxmox.Resources{
			Hosts:  []proxmox.HostRow{host("pve1", 16, 64)},
			Guests: []proxmox.GuestRow{rowWithoutResources(20001)},
		},
		Configs: map[int]*proxmox.VMConfig{20001: &c},
	}, nil, ownRange)
	NewWithT(t).Expect(s.Hosts["pve1"].Allocated).To(Equal(amount(4, 4)), "the Host has allocated")
}
