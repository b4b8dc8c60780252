// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvestatd

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// GuestRow returns the row of a guest: figures of the last report, all else current. It returns JSON because a cluster
// can have thousands of guests. The caller holds the mutex.
func (d *Daemon) GuestRow(g *kernel.Guest, pool string) json.RawMessage {
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
	if f, ok := d.lastFigures(g); ok {
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
func (d *Daemon) HostRow(h *kernel.Host, figures bool) api.Row {
	out := api.Row{"id": "node/" + h.Name, "type": "node", "node": h.Name, "status": h.Status()}
	if h.Online {
		out["level"] = ""
		if figures && h.Report != nil {
			maps.Copy(out, h.Report.Host)
		}
	}
	return out
}

// StorageRow returns the row of a storage on a host.
func (d *Daemon) StorageRow(s *storage.Storage, h *kernel.Host) api.Row {
	out := api.Row{
		"id": "storage/" + h.Name + "/" + s.ID, "type": "storage", "storage": s.ID, "node": h.Name, "plugintype": s.Type,
		"content": strings.Join(s.Content, ","), "shared": api.BoolInt(s.Shared), "status": "unknown",
	}
	if h.Report == nil {
		return out
	}
	if used, ok := h.Report.Storages[s.ID]; ok {
		out["disk"], out["maxdisk"], out["status"] = used, s.Size, "available"
	}
	return out
}
