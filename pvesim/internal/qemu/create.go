// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (c *creator) postQemu(ctx context.Context, r *api.Request) (api.Response, error) {
	if keys, ok := r.Value("sshkeys"); ok {
		if err := cloudinit.CheckSSHKeys(keys); err != nil {
			return api.Response{}, err
		}
	}
	if err := c.k.CheckQuorum(r); err != nil {
		return api.Response{}, err
	}
	options := vmOptions(r)
	if err := c.checkCreate(r, options); err != nil {
		return api.Response{}, err
	}
	if err := c.normalize(options); err != nil {
		return api.Response{}, err
	}
	if err := c.reserveVMID(ctx, r.Host, r.VMID); err != nil {
		return api.Response{}, api.Failf("unable to create VM %d - %v", r.VMID, err)
	}
	return kernel.TaskResponse(c.k.Fork(r, "qmcreate", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		return c.create(ctx, t, r, options)
	}))
}

// checkCreate checks a create request in the order of Proxmox: pool, VM, storages, options, bridges.
func (c *creator) checkCreate(r *api.Request, options map[string]string) error {
	pool := r.Params.Values["pool"]
	if pool != "" && !c.k.Access.PoolExists(pool) {
		return api.Denied(fmt.Sprintf("pool '%s' does not exist", pool))
	}
	if s, ok := r.Value("storage"); ok {
		if err := c.k.Require(r, "/storage/"+s, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	allowed := c.k.Access.Has(r.Who, "/vms/"+strconv.Itoa(r.VMID), "VM.Allocate") ||
		(pool != "" && c.k.Access.Has(r.Who, "/pool/"+pool, "VM.Allocate"))
	if !allowed {
		return api.Denied("")
	}
	if r.Params.Values["archive"] != "" {
		return api.Failf("restoring backups is not part of the simulator")
	}
	if v, ok := options["cdrom"]; ok {
		options["ide2"] = v
		delete(options, "cdrom")
	}
	if err := c.permissions.checkStorageAccess(r, r.VMID, options, r.Params.Values["storage"]); err != nil {
		return err
	}
	if err := c.permissions.checkOptions(r, target{vmid: r.VMID, pool: pool, create: true}, options); err != nil {
		return err
	}
	return c.permissions.checkBridges(r, options)
}

// reserveVMID creates the config of the new VM with "lock: create", which reserves the VMID on all hosts.
func (c *creator) reserveVMID(ctx context.Context, host string, vmid int) error {
	release, err := c.k.LockGuest(ctx, nil, host, vmid, locks.Exclusive, 5*time.Second)
	if err != nil {
		return err
	}
	defer release()
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if g := c.k.Guests[vmid]; g != nil {
		what := "VM"
		if g.Type == "lxc" {
			what = "CT"
		}
		return api.Failf("%s %d already exists on node '%s'", what, vmid, g.Host)
	}
	c.k.Guests[vmid] = &kernel.Guest{VMID: vmid, Type: "qemu", Host: host, Config: qm.New(map[string]string{"lock": "create"})}
	return nil
}

func (c *creator) create(ctx context.Context, t *tasks.Task, r *api.Request, options map[string]string) error {
	err := c.writeNewVM(ctx, t, r, options)
	if errors.Is(context.Cause(ctx), tasks.ErrPowerLost) {
		return err
	}
	if err != nil {
		c.k.Mu.Lock()
		delete(c.k.Guests, r.VMID)
		c.k.Mu.Unlock()
		return api.Failf("unable to create VM %d - %v", r.VMID, err)
	}
	if pool := r.Params.Values["pool"]; pool != "" {
		if err := c.addToPool(ctx, r.VMID, pool); err != nil {
			return err
		}
	}
	if r.Bool("start") {
		c.k.ForkVM(r, "qmstart", func(ctx context.Context, t *tasks.Task) error { return c.power.Start(ctx, t, r) })
	}
	return nil
}

func (c *creator) writeNewVM(ctx context.Context, t *tasks.Task, r *api.Request, options map[string]string) error {
	release, err := c.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, time.Second)
	if err != nil {
		return err
	}
	defer release()
	if tags := options["tags"]; tags != "" && c.k.Version.CreateChecksTags {
		if err := c.permissions.checkCreateTags(r, tags); err != nil {
			return err
		}
	}
	made, err := c.disks.createDisks(ctx, t, r.Host, r.VMID, options)
	if err != nil {
		c.allocator.DiscardVolumes(t, r.Host, made)
		return err
	}
	if options["boot"] == "" {
		options["boot"] = qm.DefaultBootOrder(options)
	}
	if options["smbios1"] == "" {
		options["smbios1"] = "uuid=" + uuid.NewString()
	}
	if v := options["vmgenid"]; v == "" {
		options["vmgenid"] = uuid.NewString()
	} else if v == "0" {
		delete(options, "vmgenid")
	}
	options["meta"] = fmt.Sprintf("creation-qemu=%s,ctime=%d", c.k.Version.QEMU, c.k.Clock.Now().Unix())
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	c.k.Guests[r.VMID].Config = qm.New(options)
	return nil
}

func (de *destroyer) deleteQemu(_ context.Context, r *api.Request) (api.Response, error) {
	if _, err := de.checkDestroy(r); err != nil {
		return api.Response{}, err
	}
	return kernel.TaskResponse(de.k.ForkVM(r, "qmdestroy", func(ctx context.Context, t *tasks.Task) error { return de.destroy(ctx, t, r) }))
}

// checkDestroy checks a destroy request. It runs before the response and again in the task.
func (de *destroyer) checkDestroy(r *api.Request) (*kernel.Guest, error) {
	de.k.Mu.Lock()
	defer de.k.Mu.Unlock()
	g := de.k.FindVM(r.Host, r.VMID)
	_, managed := de.ha.State(r.VMID)
	switch {
	case g == nil:
		return nil, kernel.MissingConfigError(r.Host, r.VMID)
	case g.Config.Bool("protection", false):
		return nil, api.Failf("can't remove VM %d - protection mode enabled", r.VMID)
	case managed && !r.Bool("purge"):
		return nil, api.Failf("unable to remove VM %d - used in HA resources and purge parameter not set.", r.VMID)
	case g.IsRunning():
		return nil, api.Failf("VM %d is running - destroy failed", r.VMID)
	}
	return g, nil
}

func (de *destroyer) destroy(ctx context.Context, t *tasks.Task, r *api.Request) error {
	g, err := de.checkDestroy(r)
	if err != nil {
		return err
	}
	volids, err := de.markDestroyed(r, g)
	if err != nil {
		return err
	}
	for _, id := range volids {
		if err := de.allocator.FreeVolume(ctx, t, r.Host, id); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// Proxmox removes the VM even if one of its volumes cannot be removed.
			t.Warnf("Could not remove disk '%s', check manually: %v", id, err)
		}
	}
	if r.Bool("destroy-unreferenced-disks") {
		de.allocator.FreeUnreferenced(r.VMID)
	}
	de.removeAccess(ctx, t, r.VMID)
	de.k.Mu.Lock()
	defer de.k.Mu.Unlock()
	de.firewall.RemoveVM(r.VMID)
	if r.Bool("purge") {
		t.Logf("purging VM %d from related configurations..", r.VMID)
		if de.ha.Remove(r.VMID) {
			t.Logf("NOTE: removed VM %d from HA resource configuration.", r.VMID)
		}
	}
	delete(de.k.Guests, r.VMID)
	return nil
}

// markDestroyed checks the disks, reduces the config to "lock: destroyed", and returns the volumes to free.
func (de *destroyer) markDestroyed(r *api.Request, g *kernel.Guest) (volids []string, err error) {
	de.k.Mu.Lock()
	defer de.k.Mu.Unlock()
	if lock := g.Config.Lock(); lock != "" && lock != "suspended" && !r.Bool("skiplock") {
		return nil, api.Failf("VM is locked (%s)", lock)
	}
	for key, v := range g.Config.Options {
		if !qm.IsDriveKey(key) && !strings.HasPrefix(key, "unused") {
			continue
		}
		d, ok := qm.ParseDrive(key, v)
		if !ok || !d.HasVolume() {
			continue
		}
		vol := de.store.Volume(r.Host, d.File)
		if vol == nil || vol.Content() != "images" || vol.Owner != r.VMID {
			continue
		}
		if g.Config.IsTemplate() && de.store.HasChildren(vol) {
			return nil, api.Failf("base volume '%s' is still in use by linked cloned", d.File)
		}
		volids = append(volids, d.File)
	}
	if err := de.k.CheckWritable(de.k.Host(r.Host), configFile(r.Host, r.VMID)); err != nil {
		return nil, err
	}
	g.Config = qm.New(map[string]string{"lock": "destroyed"})
	return volids, nil
}

// removeAccess removes ACL entries and pool membership under the cluster-wide lock of user.cfg.
func (de *destroyer) removeAccess(ctx context.Context, t *tasks.Task, vmid int) {
	release, err := de.k.Locks.Cluster(ctx, "file-user_cfg", 10*time.Second)
	if err != nil {
		t.Warnf("access permissions cleanup for VM %d failed: %v", vmid, err)
		return
	}
	defer release()
	de.k.Access.RemoveGuest(vmid)
}
