// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

func (sh *statusHandlers) getQemuList(_ context.Context, r *api.Request) (api.Response, error) {
	may := sh.k.Access.Viewer(r.Who)
	sh.k.Mu.Lock()
	defer sh.k.Mu.Unlock()
	rows := []api.Row{}
	for _, g := range sh.k.SortedGuests() {
		if g.Host == r.Host && g.Type == "qemu" && may.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
			rows = append(rows, sh.guestStatus(g, r.Bool("full")))
		}
	}
	return api.Response{Data: rows}, nil
}

func (sh *statusHandlers) getStatus(_ context.Context, r *api.Request) (api.Response, error) {
	sh.k.Mu.Lock()
	defer sh.k.Mu.Unlock()
	g := sh.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	out := sh.guestStatus(g, true)
	out["ha"] = sh.ha.StatusRow(g.VMID)
	if _, hasVGA := g.Config.Options["vga"]; hasVGA {
		out["clipboard"] = nil
	}
	if qm.AgentEnabled(g.Config.Options["agent"]) {
		out["agent"] = 1
	}
	return api.Response{Data: out}, nil
}

// guestStatus returns the current status of a guest for the lists of its host and for status/current.
func (sh *statusHandlers) guestStatus(g *kernel.Guest, full bool) api.Row {
	cpu, mem := g.Load()
	out := api.Row{
		"vmid": g.VMID, "name": g.Name(), "status": g.Status(), "cpus": sh.k.GuestCPUs(g), "cpu": cpu, "maxmem": g.Memory(), "mem": mem,
		"maxdisk": g.BootDiskSize(), "disk": 0, "netin": 0, "netout": 0, "uptime": g.Uptime(),
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
	if sh.k.Version.HostMemory {
		out["memhost"] = mem
	}
	if g.IsRunning() {
		out["pid"] = g.PID
		if sh.k.Version.HostMemory {
			for _, kind := range []string{"cpu", "io", "memory"} {
				out["pressure"+kind+"some"], out["pressure"+kind+"full"] = 0, 0
			}
		}
	}
	if full {
		out["qmpstatus"] = g.QMPStatus()
		if g.IsRunning() {
			sh.addDevices(g, out)
		}
	}
	return out
}

// addDevices adds the tap devices of a running VM.
func (sh *statusHandlers) addDevices(g *kernel.Guest, out api.Row) {
	nics := api.Row{}
	for _, key := range qm.NetKeys(g.Config.Options) {
		nics[fmt.Sprintf("tap%di%s", g.VMID, strings.TrimPrefix(key, "net"))] = api.Row{"netin": 0, "netout": 0}
	}
	if len(nics) > 0 {
		out["nics"] = nics
	}
}

func (sh *statusHandlers) getFeature(_ context.Context, r *api.Request) (api.Response, error) {
	sh.k.Mu.Lock()
	defer sh.k.Mu.Unlock()
	g := sh.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	has := true
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || d.IsCDROM() || !d.HasVolume() {
			continue
		}
		switch r.Params.Values["feature"] {
		case "clone":
			has = has && sh.store.CanLink(g.Host, d.File)
		case "snapshot":
			v := sh.store.Volume(g.Host, d.File)
			has = has && v != nil && (v.Format() == "qcow2" || !sh.store.Storage(d.Storage()).Kind().FileBased) && sh.store.Storage(d.Storage()).Type != "lvm"
		}
	}
	hosts := []string{}
	for _, h := range sh.k.Hosts {
		hosts = append(hosts, h.Name)
	}
	return api.Response{Data: api.Row{"hasFeature": api.BoolInt(has), "nodes": hosts}}, nil
}

func (sh *statusHandlers) getLXCList(_ context.Context, r *api.Request) (api.Response, error) {
	may := sh.k.Access.Viewer(r.Who)
	sh.k.Mu.Lock()
	defer sh.k.Mu.Unlock()
	rows := []api.Row{}
	for _, g := range sh.k.SortedGuests() {
		if g.Host == r.Host && g.Type == "lxc" && may.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
			out := sh.guestStatus(g, false)
			out["type"] = "lxc"
			rows = append(rows, out)
		}
	}
	return api.Response{Data: rows}, nil
}

func (sh *statusHandlers) getLXCConfig(_ context.Context, r *api.Request) (api.Response, error) {
	sh.k.Mu.Lock()
	defer sh.k.Mu.Unlock()
	g := sh.k.Guests[r.VMID]
	if g == nil || g.Host != r.Host || g.Type != "lxc" {
		return api.Response{}, api.Failf("Configuration file 'nodes/%s/lxc/%d.conf' does not exist", r.Host, r.VMID)
	}
	out := api.Row{"digest": g.Config.Digest()}
	for k, v := range g.Config.Options {
		out[k] = sh.jsonValue(k, v)
	}
	return api.Response{Data: out}, nil
}
