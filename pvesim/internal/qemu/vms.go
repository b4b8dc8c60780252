// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qemu serves the configs of VMs: create, clone, change, destroy, migrate, snapshots and templates. Containers
// are only listed.
package qemu

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/firewall"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/ha"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pending"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Areas are the parts of the cluster that VMs use.
type Areas struct {
	Kernel    *kernel.Kernel
	Store     *storage.Store
	Allocator *storage.Allocator
	Network   *sdn.Network
	HA        *ha.Manager
	Firewall  *firewall.Firewall
	Pending   *pending.Applier
	Power     *power.Controller
}

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
func New(a Areas) *VMs {
	e := &env{
		k: a.Kernel, store: a.Store, allocator: a.Allocator, network: a.Network, ha: a.HA, firewall: a.Firewall, pending: a.Pending, power: a.Power,
	}
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
		"GET /nodes/{node}/lxc":                       sh.getLXCList,
		"GET /nodes/{node}/lxc/{vmid}/config":         sh.getLXCConfig,
		"GET /nodes/{node}/qemu":                      sh.getQemuList,
		"POST /nodes/{node}/qemu":                     create.postQemu,
		"GET" + vm:                                    api.Index("subdir", "config", "pending", "status", "firewall", "agent", "snapshot"),
		"DELETE" + vm:                                 destroy.deleteQemu,
		"GET" + vm + "/status":                        api.Index("subdir", "current", "start", "stop", "reset", "shutdown", "suspend", "reboot"),
		"GET" + vm + "/status/current":                sh.getStatus,
		"GET" + vm + "/config":                        c.getConfig,
		"PUT" + vm + "/config":                        c.putConfig,
		"POST" + vm + "/config":                       c.postConfig,
		"GET" + vm + "/pending":                       c.getPending,
		"PUT" + vm + "/resize":                        resize.putResize,
		"PUT" + vm + "/unlink":                        c.putUnlink,
		"POST" + vm + "/clone":                        clone.postClone,
		"POST" + vm + "/template":                     template.postTemplate,
		"GET" + vm + "/feature":                       sh.getFeature,
		"GET" + vm + "/migrate":                       mg.getMigrate,
		"POST" + vm + "/migrate":                      mg.postMigrate,
		"POST" + vm + "/move_disk":                    ds.postMoveDisk,
		"GET" + vm + "/snapshot/{snapname}/config":    sn.getSnapshotConfig,
		"POST" + vm + "/snapshot/{snapname}/rollback": sn.postRollback,
		"GET" + vm + "/snapshot":                      sn.getSnapshots,
		"POST" + vm + "/snapshot":                     sn.postSnapshot,
		"DELETE" + vm + "/snapshot/{snapname}":        sn.deleteSnapshot,
		"GET" + vm + "/cloudinit":                     ci.getCloudInit,
		"PUT" + vm + "/cloudinit":                     ci.putCloudInit,
		"GET" + vm + "/cloudinit/dump":                ci.getCloudInitDump,
	}
}
