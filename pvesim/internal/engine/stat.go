// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

type row = map[string]any

// report is one cycle of pvestatd on every host that is up: what /cluster/resources shows until the next one.
// The caller holds the mutex.
func (e *Engine) report() {
	used := e.usages()
	byHost := map[string]map[string]row{}
	for _, h := range e.hosts {
		if h.Online {
			h.reported = true
			byHost[h.Name] = map[string]row{}
			h.rows = byHost[h.Name]
			h.rows["node/"+h.Name] = e.hostFigures(h)
		}
	}
	for _, g := range e.guests {
		if rows := byHost[g.Host]; rows != nil {
			rows[g.id()] = e.guestFigures(g)
		}
	}
	for _, s := range e.storages {
		for host, rows := range byHost {
			if !s.availableOn(host) {
				continue
			}
			key := host
			if s.Shared {
				key = ""
			}
			rows["storage/"+host+"/"+s.ID] = row{"disk": min(s.BaseUsed+used[s.ID+"|"+key], s.Size), "maxdisk": s.Size}
		}
	}
}

func (g *Guest) id() string { return g.Type + "/" + strconv.Itoa(g.VMID) }

func (g *Guest) name() string {
	if g.Type == "lxc" {
		return or(g.Config.Options["hostname"], "CT"+strconv.Itoa(g.VMID))
	}
	return or(g.Config.Options["name"], fmt.Sprintf("VM %d", g.VMID))
}

func or(v, def string) string {
	if v == "" {
		return def
	}
	return v
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

// usage is a plausible load: a running guest uses a third of its memory and a little CPU.
func (g *Guest) load() (cpu float64, mem int64) {
	if !g.running() {
		return 0, 0
	}
	return 0.02, g.memory() / 3
}

func (e *Engine) guestFigures(g *Guest) row {
	cpu, mem := g.load()
	out := row{
		"name": g.name(), "status": g.qmpStatus(), "template": boolInt(g.Config.IsTemplate()), "uptime": g.upSeconds(),
		"maxcpu": e.guestCPUs(g), "cpu": cpu, "maxmem": g.memory(), "mem": mem, "maxdisk": g.bootDiskSize(), "disk": 0,
		"netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0,
	}
	if e.Version.HostMemory {
		out["memhost"] = mem
	}
	return out
}

func (e *Engine) hostFigures(h *Host) row {
	cpu, mem := 0.01, h.Memory/20
	for _, g := range e.guests {
		if g.Host == h.Name {
			c, m := g.load()
			cpu += c / float64(h.CPUs())
			mem += m
		}
	}
	return row{
		"uptime": int64(time.Since(h.bootedAt).Seconds()), "cpu": min(cpu, 1), "mem": min(mem, h.Memory), "disk": int64(4 << 30),
		"maxcpu": h.CPUs(), "maxmem": h.Memory, "maxdisk": int64(96 << 30),
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// guestRow is a guest in /cluster/resources: figures from pvestatd, everything else live.
func (e *Engine) guestRow(g *Guest, pool string) row {
	out := row{"id": g.id(), "type": g.Type, "vmid": g.VMID, "node": g.Host, "status": "unknown"}
	if h := e.host(g.Host); h != nil {
		maps.Copy(out, h.rows[g.id()])
	}
	if lock := g.Config.Lock(); lock != "" {
		out["lock"] = lock
	}
	if tags := g.Config.Options["tags"]; tags != "" {
		out["tags"] = tags
	}
	if pool != "" {
		out["pool"] = pool
	}
	if res := e.ha[haID(g.VMID)]; res != nil {
		out["hastate"] = res["state"]
	}
	return out
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
	case !h.reported:
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
		if figures {
			maps.Copy(out, h.rows["node/"+h.Name])
		}
	}
	return out
}

func (e *Engine) storageRow(s *Storage, h *Host) row {
	out := row{
		"id": "storage/" + h.Name + "/" + s.ID, "type": "storage", "storage": s.ID, "node": h.Name, "plugintype": s.Type,
		"content": strings.Join(s.Content, ","), "shared": boolInt(s.Shared), "status": "unknown",
	}
	if r := h.rows["storage/"+h.Name+"/"+s.ID]; r != nil {
		maps.Copy(out, r)
		out["status"] = "available"
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
