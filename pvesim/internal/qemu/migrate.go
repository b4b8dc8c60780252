// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// postMigrate moves a VM to another host.
func (m *migrator) postMigrate(_ context.Context, r *api.Request) (api.Response, error) {
	to := r.Params.Values["target"]
	if err := checkTarget(m.k, r, to); err != nil {
		return api.Response{}, err
	}
	if err := m.k.CheckQuorum(r); err != nil {
		return api.Response{}, err
	}
	typ := "qmigrate"
	if m.ha.IsManaged(r.VMID) {
		if err := m.ha.CheckMove(r.VMID, to); err != nil {
			return api.Response{}, err
		}
		typ = "hamigrate"
	}
	return kernel.TaskResponse(m.k.ForkVM(r, typ, func(ctx context.Context, t *tasks.Task) error { return m.migrate(ctx, t, r, to) }))
}

func checkTarget(k *kernel.Kernel, r *api.Request, to string) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	g := k.FindVM(r.Host, r.VMID)
	switch {
	case to == r.Host:
		return api.BadParam("target", "target is local node.")
	case k.Host(to) == nil:
		return api.Failf("no such cluster node '%s'", to)
	case g == nil:
		return kernel.MissingConfigError(r.Host, r.VMID)
	case g.IsRunning() && !r.Bool("online"):
		return api.Failf("can't migrate running VM without --online")
	}
	return nil
}

func (m *migrator) migrate(ctx context.Context, t *tasks.Task, r *api.Request, to string) error {
	t.Logf("starting migration of VM %d to node '%s'", r.VMID, to)
	m.k.Mu.Lock()
	g, local, err := m.checkMigrate(r, to)
	var took time.Duration
	if err == nil {
		g.Config.Options["lock"] = "migrate"
		took = migrationTime(g, local)
	}
	m.k.Mu.Unlock()
	if err != nil {
		return api.Failf("migration aborted: %v", err)
	}
	err = m.k.Clock.Sleep(ctx, took)
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	delete(g.Config.Options, "lock")
	if err != nil {
		return err
	}
	m.relocate(g, to)
	t.Logf("migration finished successfully")
	return nil
}

// localDrives returns the drives on storages that are not shared.
func localDrives(store *storage.Store, g *kernel.Guest) []qm.Drive {
	return slices.DeleteFunc(qm.VolumeDrives(g.Config.Options), func(d qm.Drive) bool { return store.Storage(d.Storage()).Shared })
}

// checkMigrate returns the volumes to copy. The caller holds the mutex.
func (m *migrator) checkMigrate(r *api.Request, to string) (*kernel.Guest, []*storage.Volume, error) {
	g := m.k.FindVM(r.Host, r.VMID)
	switch {
	case g == nil:
		return nil, nil, kernel.MissingConfigError(r.Host, r.VMID)
	case g.Config.Lock() != "":
		return nil, nil, api.Failf("VM is locked (%s)", g.Config.Lock())
	case !kernel.Sees(m.k.Host(r.Host), m.k.Host(to)):
		return nil, nil, api.Failf("Can't connect to destination address using public key")
	}
	var local []*storage.Volume
	for _, d := range localDrives(m.store, g) {
		v := m.store.Volume(g.Host, d.File)
		switch {
		case v == nil || v.Content() != "images":
			return nil, nil, api.Failf("can't migrate '%s' - local cdrom", d.File)
		case v.Base != "":
			return nil, nil, api.Failf("can't migrate local disk '%s' as it's a clone of '%s:%s'", d.File, v.Storage, v.Base)
		case g.IsRunning() && !r.Bool("with-local-disks") && !d.IsCloudInit():
			return nil, nil, api.Failf("can't live migrate attached local disks without with-local-disks option")
		case !m.store.Storage(d.Storage()).IsAvailableOn(to):
			return nil, nil, api.Failf("storage '%s' is not available on node '%s'", d.Storage(), to)
		}
		local = append(local, v)
	}
	return g, local, nil
}

// migrationTime returns the time to copy local disks and, if the VM runs, its memory.
func migrationTime(g *kernel.Guest, local []*storage.Volume) time.Duration {
	seconds := 2.0
	for _, v := range local {
		seconds += float64(v.Size) / float64(400<<20)
	}
	if g.IsRunning() {
		seconds += float64(g.Memory()) / float64(800<<20)
	}
	return time.Duration(seconds * float64(time.Second))
}

func (m *migrator) getMigrate(_ *api.Request, g *kernel.Guest) (any, error) {
	local := []api.Row{}
	for _, d := range localDrives(m.store, g) {
		size, _ := qm.ParseSize(d.Opts["size"])
		local = append(local, api.Row{"volid": d.File, "size": size, "cdrom": api.BoolInt(d.IsCDROM())})
	}
	return api.Row{"running": api.BoolInt(g.IsRunning()), "local_disks": local, "local_resources": []string{}, "mapped-resources": []string{}}, nil
}

// listGuests returns the list of VMs or containers on a host.
func (sh *statusHandlers) listGuests(typ string) func(r *api.Request) (any, error) {
	return func(r *api.Request) (any, error) {
		may := sh.k.Access.Viewer(r.Who)
		rows := []api.Row{}
		for _, g := range sh.k.SortedGuests() {
			if g.Host != r.Host || g.Type != typ || !may.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				continue
			}
			out := sh.guestStatus(g, typ == "qemu" && r.Bool("full"))
			if typ == "lxc" {
				out["type"] = typ
			}
			rows = append(rows, out)
		}
		return rows, nil
	}
}

func (sh *statusHandlers) getStatus(_ *api.Request, g *kernel.Guest) (any, error) {
	out := sh.guestStatus(g, true)
	out["ha"] = sh.ha.StatusRow(g.VMID)
	if _, hasVGA := g.Config.Options["vga"]; hasVGA {
		out["clipboard"] = nil
	}
	if qm.AgentEnabled(g.Config.Options["agent"]) {
		out["agent"] = 1
	}
	return out, nil
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
		api.SetNonEmpty(out, key, g.Config.Options[key])
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

func (sh *statusHandlers) getFeature(r *api.Request, g *kernel.Guest) (any, error) {
	has := true
	for _, d := range qm.VolumeDrives(g.Config.Options) {
		switch feature := r.Params.Values["feature"]; {
		case d.IsCDROM():
		case feature == "clone":
			has = has && sh.store.CanLink(g.Host, d.File)
		case feature == "snapshot":
			v := sh.store.Volume(g.Host, d.File)
			has = has && v != nil && (v.Format() == "qcow2" || !sh.store.Storage(d.Storage()).Kind().FileBased) && sh.store.Storage(d.Storage()).Type != "lvm"
		}
	}
	hosts := []string{}
	for _, h := range sh.k.Hosts {
		hosts = append(hosts, h.Name)
	}
	return api.Row{"hasFeature": api.BoolInt(has), "nodes": hosts}, nil
}

func (sh *statusHandlers) getLXCConfig(r *api.Request) (any, error) {
	g := sh.k.Guests[r.VMID]
	if g == nil || g.Host != r.Host || g.Type != "lxc" {
		return nil, api.Failf("Configuration file 'nodes/%s/lxc/%d.conf' does not exist", r.Host, r.VMID)
	}
	out := api.Row{"digest": g.Config.Digest()}
	for k, v := range g.Config.Options {
		out[k] = sh.jsonValue(k, v)
	}
	return out, nil
}
