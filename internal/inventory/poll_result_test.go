// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestGuestsAreChargedByTheRule(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		guest proxmox.GuestRow
		want  inventory.Amount
	}{
		"running VM of somebody else":     {vm(100, "pve1", "running", 4, 8), amount(4, 8)},
		"paused VM keeps its memory":      {vm(100, "pve1", "paused", 4, 8), amount(4, 8)},
		"stopped VM of somebody else":     {vm(100, "pve1", "stopped", 4, 8), amount(0, 0)},
		"our running VM":                  {vm(20001, "pve1", "running", 4, 8), amount(4, 8)},
		"our stopped VM will start again": {vm(20001, "pve1", "stopped", 4, 8), amount(4, 8)},
		"template":                        {template(100), amount(0, 0)},
		"template in our range":           {template(20001), amount(0, 0)},
		"container":                       {container(100, 2, 3), amount(2, 3)},
		"container without a CPU limit":   {container(100, 16, 3), amount(0, 3)},
		"row without figures":             {unknown(100), amount(0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := snapshotOf(nil, []proxmox.HostRow{host("pve1", 16, 64)}, c.guest)
			if got := s.Hosts["pve1"].Allocated; got != c.want {
				t.Errorf("the Host is charged %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestRowWithoutFiguresKeepsTheLastKnownOnes(t *testing.T) {
	t.Parallel()
	hosts := []proxmox.HostRow{host("pve1", 16, 64)}
	foreign, stopped, tpl := vm(100, "pve1", "running", 4, 8), vm(101, "pve1", "stopped", 2, 4), template(900)
	before := snapshotOf(nil, hosts, foreign, stopped, tpl)

	// Twice in a row: the figures must survive more than one such reading.
	after := before
	for range 2 {
		after = snapshotOf(after, hosts, unknown(100), unknown(101), unknown(900))
	}
	if got, want := after.Hosts["pve1"].Allocated, amount(4, 8); got != want {
		t.Errorf("the Host is charged %+v, want %+v as before", got, want)
	}
	g := after.Guests[100]
	if !g.Stale || g.Name != "vm-100" || g.CPUs != 4 || g.Status != "unknown" {
		t.Errorf("guest 100 is %+v, want its last figures, marked stale, with the status as reported", g)
	}
	if !after.Guests[900].Template {
		t.Error("the template lost its flag with its figures")
	}

	fresh := snapshotOf(after, hosts, vm(100, "pve1", "stopped", 4, 8))
	if g := fresh.Guests[100]; g.Stale || g.Allocated != (inventory.Amount{}) {
		t.Errorf("guest 100 is %+v, want fresh figures", g)
	}
}

func TestContainerDoesNotInheritFromAVM(t *testing.T) {
	t.Parallel()
	hosts := []proxmox.HostRow{host("pve1", 16, 64)}
	before := snapshotOf(nil, hosts, vm(100, "pve1", "running", 4, 8))
	row := unknown(100)
	row.Kind = proxmox.KindLXC
	if after := snapshotOf(before, hosts, row); after.Guests[100].Stale {
		t.Error("a container took over the figures of a VM that had its VMID")
	}
}

func TestUnknownVMOfOursIsChargedByItsConfiguration(t *testing.T) {
	t.Parallel()
	c := config("cores", "2", "sockets", "2", "memory", "4096")
	s := inventory.NewSnapshot(inventory.PollResult{
		Resources: proxmox.Resources{
			Hosts:  []proxmox.HostRow{host("pve1", 16, 64)},
			Guests: []proxmox.GuestRow{unknown(20001)},
		},
		Configs: map[int]*proxmox.VMConfig{20001: &c},
	}, nil, own)
	if got, want := s.Hosts["pve1"].Allocated, amount(4, 4); got != want {
		t.Errorf("the Host is charged %+v, want %+v", got, want)
	}
}

func TestHostThatIsAwayKeepsItsSize(t *testing.T) {
	t.Parallel()
	before := snapshotOf(nil, []proxmox.HostRow{host("pve1", 16, 64)}, vm(100, "pve1", "running", 4, 8))
	after := snapshotOf(before, []proxmox.HostRow{{Name: "pve1"}}, unknown(100))
	h := after.Hosts["pve1"]
	if h.Online || h.CPUs != 16 || h.MemoryBytes != 64*gib || h.Allocated != amount(4, 8) {
		t.Errorf("the Host is %+v, want offline with its last size and charge", h)
	}
}
