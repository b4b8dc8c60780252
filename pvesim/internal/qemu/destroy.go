// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (de *destroyer) deleteQemu(_ context.Context, r *api.Request) (api.Response, error) {
	if err := api.CheckSkipLock(r); err != nil {
		return api.Response{}, err
	}
	if _, err := de.checkDestroy(r); err != nil {
		return api.Response{}, err
	}
	t := de.k.Fork(r, "qmdestroy", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		return de.destroy(ctx, t, r)
	})
	return kernel.TaskResponse(t), nil
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
	release, err := de.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
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
	if lock := g.Config.Lock(); lock != "" && !r.Bool("skiplock") {
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
	if err := de.k.CheckWritable(configFile(r.Host, r.VMID)); err != nil {
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
