// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/firewall"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/ha"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pending"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// env is shared by all operations on VMs.
type env struct {
	k         *kernel.Kernel
	store     *storage.Store
	allocator *storage.Allocator
	network   *sdn.Network
	ha        *ha.Manager
	firewall  *firewall.Firewall
	pending   *pending.Applier
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

// jsonValue returns an option with the JSON type of responses: a number for integers and booleans, otherwise a string.
func (e *env) jsonValue(key, v string) any {
	p := e.k.Schema.Method("PUT /nodes/{node}/qemu/{vmid}/config").Lookup(key)
	if p == nil || (p.Type != "integer" && p.Type != "boolean") {
		return v
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return v
	}
	return n
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
func (e *env) lockedTask(r *api.Request, typ string, change func(t *tasks.Task, g *kernel.Guest) error) api.Response {
	return kernel.TaskResponse(e.k.Fork(r, typ, strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		release, err := e.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
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
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() {
			continue
		}
		v := e.store.Volume(g.Host, d.File)
		if v == nil || v.Host == "" || v.Content() != "images" {
			continue
		}
		e.store.RemoveVolume(g.Host, d.File)
		v.Host = to
		e.store.PutVolume(v)
	}
	g.Host = to
}
