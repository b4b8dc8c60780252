// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pvestatd is the status daemon. Its last report determines what /cluster/resources shows.
package pvestatd

import (
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/ha"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// interval is the interval between reports.
const interval = 10 * time.Second

// Daemon reports the state of hosts, guests and storages, and renders the rows of /cluster/resources.
type Daemon struct {
	k     *kernel.Kernel
	store *storage.Store
	ha    *ha.Manager
}

// New returns a daemon that has not reported yet.
func New(k *kernel.Kernel, store *storage.Store, manager *ha.Manager) *Daemon {
	return &Daemon{k: k, store: store, ha: manager}
}

// Run reports immediately and then at each interval until the kernel is closed. It does not block.
func (d *Daemon) Run() {
	d.lockedReport()
	d.k.Go(func() {
		for d.k.Clock.Sleep(d.k.Context(), interval) == nil {
			d.lockedReport()
		}
	})
}

func (d *Daemon) lockedReport() {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
	d.report()
}

// report is one cycle of pvestatd on all hosts that are up. The caller holds the mutex.
func (d *Daemon) report() {
	used := d.store.Usages()
	loads := d.loads()
	for _, h := range d.k.Hosts {
		if !h.Online {
			continue
		}
		guests := 0
		if h.Report != nil {
			guests = len(h.Report.Guests)
		}
		h.Report = &kernel.Report{
			Host: newHostFigures(h, loads[h.Name]), Guests: make(map[int]kernel.GuestFigures, guests), Storages: map[string]int64{},
		}
		for _, s := range d.store.Storages() {
			key := h.Name
			if s.Shared {
				key = ""
			}
			if s.IsAvailableOn(h.Name) {
				h.Report.Storages[s.ID] = min(s.BaseUsed+used[s.ID+"|"+key], s.Size)
			}
		}
	}
	for _, g := range d.k.Guests {
		if h := d.k.Host(g.Host); h != nil && h.Online {
			h.Report.Guests[g.VMID] = d.guestFigures(g)
		}
	}
}

func (d *Daemon) guestFigures(g *kernel.Guest) kernel.GuestFigures {
	cpu, mem := g.Load()
	return kernel.GuestFigures{
		Name: g.Name(), Status: g.QMPStatus(), Template: g.Config.IsTemplate(), Uptime: g.Uptime(), MaxCPU: d.k.GuestCPUs(g), CPU: cpu,
		MaxMemory: g.Memory(), Memory: mem, MaxDisk: g.BootDiskSize(),
	}
}

// load is the usage of all guests on a host.
type load struct {
	cpu float64
	mem int64
}

// loads returns the usage by host.
func (d *Daemon) loads() map[string]load {
	out := map[string]load{}
	for _, g := range d.k.Guests {
		cpu, mem := g.Load()
		l := out[g.Host]
		out[g.Host] = load{cpu: l.cpu + cpu, mem: l.mem + mem}
	}
	return out
}

func newHostFigures(h *kernel.Host, l load) api.Row {
	cpu, mem := 0.01+l.cpu/float64(h.CPUs()), h.Memory/20+l.mem
	return api.Row{
		"uptime": int64(time.Since(h.BootedAt).Seconds()), "cpu": min(cpu, 1), "mem": min(mem, h.Memory), "disk": int64(4 << 30),
		"maxcpu": h.CPUs(), "maxmem": h.Memory, "maxdisk": int64(96 << 30),
	}
}

// HostFigures returns the current figures of a host. The caller holds the mutex.
func (d *Daemon) HostFigures(h *kernel.Host) api.Row { return newHostFigures(h, d.loads()[h.Name]) }

// lastFigures returns the last report about a guest.
func (d *Daemon) lastFigures(g *kernel.Guest) (f kernel.GuestFigures, ok bool) {
	h := d.k.Host(g.Host)
	if h == nil || h.Report == nil {
		return kernel.GuestFigures{}, false
	}
	f, ok = h.Report.Guests[g.VMID]
	return f, ok
}
