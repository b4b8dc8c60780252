// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

type row = map[string]any

// figures are what pvestatd last reported about a guest. They are a struct and not a row because a cluster can have
// thousands of guests, reported every few real milliseconds.
type figures struct {
	name, status         string
	template             bool
	uptime               int64
	maxcpu               int
	cpu                  float64
	maxmem, mem, maxdisk int64
}

// report is one cycle of pvestatd on every host that is up: what /cluster/resources shows until the next one.
// The caller holds the mutex.
func (e *Engine) report() {
	used := e.usages()
	loads := e.loads()
	for _, h := range e.hosts {
		if !h.Online {
			continue
		}
		h.report = &hostReport{host: figuresOf(h, loads[h.Name]), guests: map[int]figures{}, storages: map[string]int64{}}
		for _, s := range e.allStorages() {
			key := h.Name
			if s.Shared {
				key = ""
			}
			if s.availableOn(h.Name) {
				h.report.storages[s.ID] = min(s.BaseUsed+used[s.ID+"|"+key], s.Size)
			}
		}
	}
	for _, g := range e.guests {
		if h := e.host(g.Host); h != nil && h.Online {
			h.report.guests[g.VMID] = e.guestFigures(g)
		}
	}
}

func (g *Guest) id() string { return g.Type + "/" + strconv.Itoa(g.VMID) }

func (g *Guest) name() string {
	if g.Type == "lxc" {
		return cmp.Or(g.Config.Options["hostname"], "CT"+strconv.Itoa(g.VMID))
	}
	return cmp.Or(g.Config.Options["name"], fmt.Sprintf("VM %d", g.VMID))
}

// guestCPUs is the number of vCPUs, never more than the host has.
func (e *Engine) guestCPUs(g *Guest) int {
	n := int(g.Config.Int("sockets", 1) * g.Config.Int("cores", 1))
	if v := int(g.Config.Int("vcpus", 0)); v > 0 && v < n {
		n = v
	}
	if h := e.host(g.Host); h != nil {
		n = min(n, h.CPUs())
	}
	return n
}

// bootDiskSize is the size of the disk that a VM boots from.
func (g *Guest) bootDiskSize() int64 {
	for _, key := range append(qm.BootOrder(g.Config.Options["boot"]), qm.DriveKeys(g.Config.Options)...) {
		if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && !d.IsCDROM() {
			size, _ := qm.ParseSize(d.Opts["size"])
			return size
		}
	}
	return 0
}

func (g *Guest) memory() int64 { return g.Config.Int("memory", 512) << 20 }

// status is "running" or "stopped"; qmpStatus knows more.
func (g *Guest) status() string {
	if g.running() {
		return "running"
	}
	return "stopped"
}

func (g *Guest) qmpStatus() string {
	if g.running() && g.paused {
		return "paused"
	}
	return g.status()
}

func (g *Guest) upSeconds() int64 {
	if !g.running() {
		return 0
	}
	return int64(time.Since(g.uptime).Seconds())
}

// load is a plausible use: a running guest uses a third of its memory and a little CPU.
func (g *Guest) load() (cpu float64, mem int64) {
	if !g.running() {
		return 0, 0
	}
	return 0.02, g.memory() / 3
}

func (e *Engine) guestFigures(g *Guest) figures {
	cpu, mem := g.load()
	return figures{
		name: g.name(), status: g.qmpStatus(), template: g.Config.IsTemplate(), uptime: g.upSeconds(), maxcpu: e.guestCPUs(g), cpu: cpu,
		maxmem: g.memory(), mem: mem, maxdisk: g.bootDiskSize(),
	}
}

// load is what guests use on a host.
type load struct {
	cpu float64
	mem int64
}

// loads sums up the guests' use in one pass.
func (e *Engine) loads() map[string]load {
	out := map[string]load{}
	for _, g := range e.guests {
		cpu, mem := g.load()
		l := out[g.Host]
		out[g.Host] = load{cpu: l.cpu + cpu, mem: l.mem + mem}
	}
	return out
}

func figuresOf(h *Host, l load) row {
	cpu, mem := 0.01+l.cpu/float64(h.CPUs()), h.Memory/20+l.mem
	return row{
		"uptime": int64(time.Since(h.bootedAt).Seconds()), "cpu": min(cpu, 1), "mem": min(mem, h.Memory), "disk": int64(4 << 30),
		"maxcpu": h.CPUs(), "maxmem": h.Memory, "maxdisk": int64(96 << 30),
	}
}

// hostFigures are the live figures of a host.
func (e *Engine) hostFigures(h *Host) row { return figuresOf(h, e.loads()[h.Name]) }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// guestRow is a guest in /cluster/resources: figures from pvestatd, everything else live. It is written as JSON at once;
// see figures for why.
func (e *Engine) guestRow(g *Guest, pool string) json.RawMessage {
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
	text("id", g.id())
	text("type", g.Type)
	text("node", g.Host)
	number("vmid", int64(g.VMID))
	if f, ok := e.lastFigures(g); ok {
		text("name", f.name)
		text("status", f.status)
		for _, n := range []struct {
			key string
			v   int64
		}{
			{"template", int64(boolInt(f.template))}, {"uptime", f.uptime}, {"maxcpu", int64(f.maxcpu)}, {"maxmem", f.maxmem}, {"mem", f.mem},
			{"maxdisk", f.maxdisk}, {"disk", 0}, {"netin", 0}, {"netout", 0}, {"diskread", 0}, {"diskwrite", 0},
		} {
			number(n.key, n.v)
		}
		if e.Version.HostMemory {
			number("memhost", f.mem)
		}
		b = append(b, `,"cpu":`...)
		b = strconv.AppendFloat(b, f.cpu, 'g', -1, 64)
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
	if state, ok := e.haState(g.VMID); ok {
		text("hastate", state)
	}
	return append(b, '}')
}

// appendJSON quotes a text; plain ones need no encoder.
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

// lastFigures are what the guest's host last reported about it.
func (e *Engine) lastFigures(g *Guest) (f figures, ok bool) {
	h := e.host(g.Host)
	if h == nil || h.report == nil {
		return figures{}, false
	}
	f, ok = h.report.guests[g.VMID]
	return f, ok
}

// guestStatus is a VM in the host's own list and in status/current: always live.
func (e *Engine) guestStatus(g *Guest, full bool) row {
	cpu, mem := g.load()
	out := row{
		"vmid": g.VMID, "name": g.name(), "status": g.status(), "cpus": e.guestCPUs(g), "cpu": cpu, "maxmem": g.memory(), "mem": mem,
		"maxdisk": g.bootDiskSize(), "disk": 0, "netin": 0, "netout": 0, "uptime": g.upSeconds(),
	}
	if g.Config.IsTemplate() {
		out["template"] = 1
	}
	for _, key := range []string{"lock", "tags"} {
		if v := g.Config.Options[key]; v != "" {
			out[key] = v
		}
	}
	for key := range g.Config.Options {
		if strings.HasPrefix(key, "serial") {
			out["serial"] = 1
		}
	}
	if e.Version.HostMemory {
		out["memhost"] = mem
	}
	if g.running() {
		out["pid"] = g.pid
		if e.Version.HostMemory {
			for _, kind := range []string{"cpu", "io", "memory"} {
				out["pressure"+kind+"some"], out["pressure"+kind+"full"] = 0, 0
			}
		}
	}
	if full {
		out["qmpstatus"] = g.qmpStatus()
		if g.running() {
			e.addDevices(g, out)
		}
	}
	return out
}

// addDevices shows the taps of a running VM.
func (e *Engine) addDevices(g *Guest, out row) {
	nics := row{}
	for _, key := range qm.NetKeys(g.Config.Options) {
		nics[fmt.Sprintf("tap%di%s", g.VMID, strings.TrimPrefix(key, "net"))] = row{"netin": 0, "netout": 0}
	}
	if len(nics) > 0 {
		out["nics"] = nics
	}
}

func (h *Host) status() string {
	switch {
	case !h.Online:
		return "offline"
	case h.report == nil:
		return "unknown"
	default:
		return "online"
	}
}

// hostRow is a host in /nodes and /cluster/resources; figures only for those who may see them.
func (e *Engine) hostRow(h *Host, figures bool) row {
	out := row{"id": "node/" + h.Name, "type": "node", "node": h.Name, "status": h.status()}
	if h.Online {
		out["level"] = ""
		if figures && h.report != nil {
			maps.Copy(out, h.report.host)
		}
	}
	return out
}

func (e *Engine) storageRow(s *Storage, h *Host) row {
	out := row{
		"id": "storage/" + h.Name + "/" + s.ID, "type": "storage", "storage": s.ID, "node": h.Name, "plugintype": s.Type,
		"content": strings.Join(s.Content, ","), "shared": boolInt(s.Shared), "status": "unknown",
	}
	if h.report == nil {
		return out
	}
	if used, ok := h.report.storages[s.ID]; ok {
		out["disk"], out["maxdisk"], out["status"] = used, s.Size, "available"
	}
	return out
}
