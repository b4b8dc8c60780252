// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pvestatd is the status daemon. Its last report determines what /cluster/resources shows.
package pvestatd

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
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
	d.report()
	d.k.Go(func() {
		for d.k.Clock.Sleep(d.k.Context(), interval) == nil {
			d.report()
		}
	})
}

// report is one cycle of pvestatd on all hosts that are up.
func (d *Daemon) report() {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
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
			if s.IsActiveOn(h.Name) {
				h.Report.Storages[s.ID] = min(s.BaseUsed+used[s.ID+"|"+key].Bytes, s.Size)
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

// lastFigures returns the last report about a guest that the serving host received.
func (d *Daemon) lastFigures(serving *kernel.Host, g *kernel.Guest) (f kernel.GuestFigures, ok bool) {
	h := d.k.Host(g.Host)
	if h == nil || h.Report == nil || !kernel.Sees(serving, h) {
		return kernel.GuestFigures{}, false
	}
	f, ok = h.Report.Guests[g.VMID]
	return f, ok
}

// GuestRow returns the row of a guest: figures of the last report, all else current. It returns JSON because a cluster
// can have thousands of guests. The caller holds the mutex.
func (d *Daemon) GuestRow(serving *kernel.Host, g *kernel.Guest, pool string) json.RawMessage {
	b := make([]byte, 0, 400)
	text := func(key, v string) {
		if len(b) > 0 {
			b = append(b, ',')
		} else {
			b = append(b, '{')
		}
		b = strconv.AppendQuote(b, key)
		b = append(b, ':')
		b = appendJSON(b, v)
	}
	number := func(key string, n int64) {
		b = append(b, ',', '"')
		b = append(b, key...)
		b = append(b, '"', ':')
		b = strconv.AppendInt(b, n, 10)
	}
	text("id", g.ID())
	text("type", g.Type)
	text("node", g.Host)
	number("vmid", int64(g.VMID))
	if f, ok := d.lastFigures(serving, g); ok {
		text("name", f.Name)
		text("status", f.Status)
		for _, n := range []struct {
			key string
			v   int64
		}{
			{"template", int64(api.BoolInt(f.Template))}, {"uptime", f.Uptime}, {"maxcpu", int64(f.MaxCPU)}, {"maxmem", f.MaxMemory}, {"mem", f.Memory},
			{"maxdisk", f.MaxDisk}, {"disk", 0}, {"netin", 0}, {"netout", 0}, {"diskread", 0}, {"diskwrite", 0},
		} {
			number(n.key, n.v)
		}
		if d.k.Version.HostMemory {
			number("memhost", f.Memory)
		}
		b = append(b, `,"cpu":`...)
		b = strconv.AppendFloat(b, f.CPU, 'g', -1, 64)
	} else {
		text("status", "unknown")
	}
	for _, key := range []string{"lock", "tags"} {
		if v := g.Config.Options[key]; v != "" {
			text(key, v)
		}
	}
	if pool != "" {
		text("pool", pool)
	}
	if state, ok := d.ha.State(g.VMID); ok {
		text("hastate", state)
	}
	return append(b, '}')
}

// appendJSON appends a quoted string. Plain strings need no encoder.
func appendJSON(b []byte, v string) []byte {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			quoted, err := json.Marshal(v)
			if err != nil {
				return append(b, `""`...)
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, v...)
	return append(b, '"')
}

// HostRow returns the row of a host in /nodes and /cluster/resources, with figures if the caller can see them.
func (d *Daemon) HostRow(serving, h *kernel.Host, figures bool) api.Row {
	out := api.Row{"id": "node/" + h.Name, "type": "node", "node": h.Name, "status": d.k.HostStatus(serving, h)}
	if d.k.HasQuorum(serving) && kernel.Sees(serving, h) {
		out["level"] = ""
		if figures && h.Report != nil {
			maps.Copy(out, h.Report.Host)
		}
	}
	return out
}

// StorageRow returns the row of a storage on a host.
func (d *Daemon) StorageRow(serving *kernel.Host, s *storage.Storage, h *kernel.Host) api.Row {
	out := api.Row{
		"id": "storage/" + h.Name + "/" + s.ID, "type": "storage", "storage": s.ID, "node": h.Name, "plugintype": s.Type,
		"content": strings.Join(s.Content, ","), "shared": api.BoolInt(s.Shared), "status": "unknown",
	}
	if h.Report == nil || !kernel.Sees(serving, h) {
		return out
	}
	if used, ok := h.Report.Storages[s.ID]; ok {
		out["disk"], out["maxdisk"], out["status"] = used, s.Size, "available"
	}
	return out
}
