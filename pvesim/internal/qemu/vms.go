// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qemu serves the configs of VMs: create, clone, change, destroy, migrate, snapshots and templates. Containers
// are only listed.
package qemu

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/firewall"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/ha"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Operations on VMs.
type (
	permissions    struct{ *env }
	disks          struct{ *env }
	creator        struct{ *env }
	cloner         struct{ *env }
	configs        struct{ *env }
	destroyer      struct{ *env }
	resizer        struct{ *env }
	templates      struct{ *env }
	migrator       struct{ *env }
	snapshots      struct{ *env }
	statusHandlers struct{ *env }
	cloudInit      struct{ *env }
)

// VMs serves the API of VMs and adds guests without requests.
type VMs struct{ *env }

// New returns the VMs of a cluster.
func New(
	k *kernel.Kernel, store *storage.Store, network *sdn.Network, manager *ha.Manager, fw *firewall.Firewall, controller *power.Controller,
) *VMs {
	e := &env{k: k, store: store, allocator: storage.NewAllocator(store), network: network, ha: manager, firewall: fw, power: controller}
	e.permissions, e.disks = &permissions{e}, &disks{e}
	return &VMs{e}
}

// Routes returns the handlers of VMs by method.
func (vms *VMs) Routes() map[string]api.Handler {
	e := vms.env
	sh, c, mg, sn := statusHandlers{e}, configs{e}, migrator{e}, snapshots{e}
	ci, ds := cloudInit{e}, e.disks
	create, clone, destroy, resize, template := creator{e}, cloner{e}, destroyer{e}, resizer{e}, templates{e}
	const vm = " /nodes/{node}/qemu/{vmid}"
	return map[string]api.Handler{
		"GET /nodes/{node}/lxc":                       kernel.Read(e.k, sh.listGuests("lxc")),
		"GET /nodes/{node}/lxc/{vmid}/config":         kernel.Read(e.k, sh.getLXCConfig),
		"GET /nodes/{node}/qemu":                      kernel.Read(e.k, sh.listGuests("qemu")),
		"POST /nodes/{node}/qemu":                     create.postQemu,
		"GET" + vm:                                    api.Index("subdir", "config", "pending", "status", "firewall", "agent", "snapshot"),
		"DELETE" + vm:                                 destroy.deleteQemu,
		"GET" + vm + "/status":                        api.Index("subdir", "current", "start", "stop", "reset", "shutdown", "suspend", "reboot"),
		"GET" + vm + "/status/current":                kernel.ReadVM(e.k, sh.getStatus),
		"GET" + vm + "/config":                        kernel.ReadVM(e.k, c.getConfig),
		"PUT" + vm + "/config":                        c.putConfig,
		"POST" + vm + "/config":                       c.postConfig,
		"GET" + vm + "/pending":                       kernel.ReadVM(e.k, c.getPending),
		"PUT" + vm + "/resize":                        resize.putResize,
		"PUT" + vm + "/unlink":                        c.putUnlink,
		"POST" + vm + "/clone":                        clone.postClone,
		"POST" + vm + "/template":                     template.postTemplate,
		"GET" + vm + "/feature":                       kernel.ReadVM(e.k, sh.getFeature),
		"GET" + vm + "/migrate":                       kernel.ReadVM(e.k, mg.getMigrate),
		"POST" + vm + "/migrate":                      mg.postMigrate,
		"POST" + vm + "/move_disk":                    ds.postMoveDisk,
		"GET" + vm + "/snapshot/{snapname}/config":    kernel.ReadVM(e.k, sn.getSnapshotConfig),
		"POST" + vm + "/snapshot/{snapname}/rollback": sn.postRollback,
		"GET" + vm + "/snapshot":                      kernel.ReadVM(e.k, sn.getSnapshots),
		"POST" + vm + "/snapshot":                     sn.postSnapshot,
		"DELETE" + vm + "/snapshot/{snapname}":        sn.deleteSnapshot,
		"GET" + vm + "/cloudinit":                     kernel.ReadVM(e.k, ci.getCloudInit),
		"PUT" + vm + "/cloudinit":                     ci.putCloudInit,
		"GET" + vm + "/cloudinit/dump":                kernel.ReadVM(e.k, ci.getCloudInitDump),
	}
}

// env is shared by all operations on VMs.
type env struct {
	k         *kernel.Kernel
	store     *storage.Store
	allocator *storage.Allocator
	network   *sdn.Network
	ha        *ha.Manager
	firewall  *firewall.Firewall
	power     *power.Controller

	permissions *permissions
	disks       *disks
}

// configFile returns the path of a VM's config.
func configFile(host string, vmid int) string {
	return fmt.Sprintf("/etc/pve/nodes/%s/qemu-server/%d.conf", host, vmid)
}

// addToPool adds a VM to a resource pool, the last step of create and clone. It needs the cluster-wide lock of
// user.cfg.
func (e *env) addToPool(ctx context.Context, vmid int, pool string) error {
	release, err := e.k.Locks.Cluster(ctx, "file-user_cfg", 10*time.Second)
	if err != nil {
		return api.Failf("can't add VM %d to pool '%s': %v", vmid, pool, err)
	}
	defer release()
	return e.k.Access.Update(func(d *access.Data) error {
		if d.Pools[pool] == nil {
			return api.Failf("can't add VM %d to pool '%s': pool '%s' does not exist", vmid, pool, pool)
		}
		d.Pools[pool].VMs[vmid] = true
		return nil
	})
}

// jsonValue returns an option with the JSON type of responses.
func (e *env) jsonValue(key, v string) any {
	return schema.JSONValue(e.k.Schema.Method("PUT /nodes/{node}/qemu/{vmid}/config"), key, v)
}

const hiddenPassword = "**********"

// displayValue is like jsonValue, with passwords hidden.
func (e *env) displayValue(key, v string) any {
	if key == "cipassword" {
		return hiddenPassword
	}
	return e.jsonValue(key, v)
}

// normalize changes options to the form in which Proxmox stores them.
func (e *env) normalize(options map[string]string) error {
	e.k.Mu.Lock()
	prefix := e.k.Options["mac_prefix"]
	e.k.Mu.Unlock()
	for key, v := range options {
		switch {
		case qm.IsNetKey(key):
			n := qm.ParseNet(v)
			if n.MAC == "" {
				n.MAC = qm.RandomMAC(prefix)
			}
			options[key] = n.String()
		case qm.IsDriveKey(key):
			d, ok := qm.ParseDrive(key, v)
			if !ok {
				return api.BadParam(key, "unable to parse drive options")
			}
			options[key] = d.String()
		case key == "tags":
			options[key] = qm.NormalizeTags(v)
		case key == "vmgenid" && v == "1":
			options[key] = uuid.NewString()
		case key == "cipassword":
			options[key] = cloudinit.HashPassword(v)
		}
	}
	return nil
}

// lockedTask starts a task that changes a VM's config under the lock of the VM.
func (e *env) lockedTask(r *api.Request, typ string, change func(t *tasks.Task, g *kernel.Guest) error) (api.Response, error) {
	return kernel.TaskResponse(e.k.ForkVM(r, typ, func(_ context.Context, t *tasks.Task) error {
		e.k.Mu.Lock()
		defer e.k.Mu.Unlock()
		g := e.k.FindVM(r.Host, r.VMID)
		if g == nil {
			return kernel.MissingConfigError(r.Host, r.VMID)
		}
		if lock := g.Config.Lock(); lock != "" {
			return api.Failf("VM is locked (%s)", lock)
		}
		return change(t, g)
	}))
}

// relocate moves a VM and its local volumes to another host. The caller holds the mutex.
func (e *env) relocate(g *kernel.Guest, to string) {
	for _, d := range qm.VolumeDrives(g.Config.Options) {
		v := e.store.Volume(g.Host, d.File)
		if v == nil || v.Host == "" || v.Content() != "images" {
			continue
		}
		e.store.ChangeVolume(v, func(v *storage.Volume) { v.Host = to })
	}
	g.Host = to
}

// AddGuest adds a guest. It runs since the given time, or is stopped if since is zero. Missing volumes of its drives
// are created.
func (vms *VMs) AddGuest(g *kernel.Guest, since time.Time) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	if vms.k.Guests[g.VMID] != nil {
		return fmt.Errorf("adding guest %d: the VMID is used twice", g.VMID)
	}
	if vms.k.Host(g.Host) == nil {
		return fmt.Errorf("adding guest %d: there is no host %q", g.VMID, g.Host)
	}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		if err := vms.store.CreateMissingVolume(g, key); err != nil {
			return fmt.Errorf("adding guest %d: %w", g.VMID, err)
		}
	}
	vms.k.Guests[g.VMID] = g
	if !since.IsZero() && g.Type == "qemu" {
		vms.power.On(g)
	}
	g.StartedAt = since
	return nil
}

// MigrateGuest moves a VM to another host immediately.
func (vms *VMs) MigrateGuest(vmid int, to string) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	g := vms.k.Guests[vmid]
	switch {
	case g == nil:
		return api.Failf("there is no VM %d", vmid)
	case vms.k.Host(to) == nil:
		return api.Failf("no such cluster node '%s'", to)
	}
	vms.relocate(g, to)
	return nil
}

// RestoreCopy creates a VM as restoring a backup of another VM does: with a new VMID and new volumes, but the same
// UUID, description, tags and addresses.
func (vms *VMs) RestoreCopy(vmid, newid int) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	g := vms.k.Guests[vmid]
	switch {
	case g == nil:
		return api.Failf("there is no VM %d", vmid)
	case vms.k.Guests[newid] != nil:
		return api.Failf("VM %d already exists", newid)
	}
	options := maps.Clone(g.Config.Options)
	delete(options, "lock")
	for _, d := range qm.VolumeDrives(options) {
		v := vms.store.Volume(g.Host, d.File)
		if v == nil || v.Content() != "images" {
			continue
		}
		s := vms.store.Storage(v.Storage)
		name := vms.store.FreeName(storage.Allocation{Host: g.Host, Storage: s, Owner: newid, Format: v.Format()})
		if d.IsCloudInit() {
			name = s.VolumeName(newid, "cloudinit", "qcow2")
		}
		vms.store.PutVolume(&storage.Volume{Storage: s.ID, Host: v.Host, Name: name, Size: v.Size, Used: v.Used, Owner: newid, Disk: v.Disk.Clone()})
		d.File = s.ID + ":" + name
		options[d.Key] = d.String()
	}
	vms.k.Guests[newid] = &kernel.Guest{VMID: newid, Type: "qemu", Host: g.Host, Config: qm.New(options)}
	return nil
}

// SetConfigLock sets the "lock:" key of a VM, or removes it if lock is empty.
func (vms *VMs) SetConfigLock(vmid int, lock string) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	g := vms.k.Guests[vmid]
	if g == nil {
		return api.Failf("there is no VM %d", vmid)
	}
	if lock == "" {
		delete(g.Config.Options, "lock")
	} else {
		g.Config.Options["lock"] = lock
	}
	return nil
}
