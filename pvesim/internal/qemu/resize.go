// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// putResize grows a disk in a task. Shrinking fails in the task.
func (rz *resizer) putResize(_ context.Context, r *api.Request) (api.Response, error) {
	if err := api.CheckSkipLock(r); err != nil {
		return api.Response{}, err
	}
	t := rz.k.Fork(r, "resize", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		release, err := rz.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		return rz.resize(ctx, t, r)
	})
	return kernel.TaskResponse(t), nil
}

func (rz *resizer) resize(ctx context.Context, t *tasks.Task, r *api.Request) error {
	rz.k.Mu.Lock()
	g := rz.k.FindVM(r.Host, r.VMID)
	disk := r.Params.Values["disk"]
	var v *storage.Volume
	var d qm.Drive
	err := func() error {
		switch {
		case g == nil:
			return kernel.MissingConfigError(r.Host, r.VMID)
		case r.Params.Values["digest"] != "" && r.Params.Values["digest"] != g.Config.Digest():
			return api.Failf("checksum mismatch (file change by other user?)")
		case g.Config.Lock() != "" && !r.Bool("skiplock"):
			return api.Failf("VM is locked (%s)", g.Config.Lock())
		case g.Config.Options[disk] == "":
			return api.Failf("disk '%s' does not exist", disk)
		}
		d, _ = qm.ParseDrive(disk, g.Config.Options[disk])
		if d.IsCDROM() {
			return api.Failf("you can't resize a cdrom")
		}
		if v = rz.store.Volume(r.Host, d.File); v == nil {
			return api.Failf("Could not determine current size of volume '%s'", d.File)
		}
		return nil
	}()
	rz.k.Mu.Unlock()
	if err != nil {
		return err
	}
	if err := rz.k.Require(r, "/storage/"+v.Storage, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	text := r.Params.Values["size"]
	size, _ := qm.ParseSize(strings.TrimPrefix(text, "+"))
	if strings.HasPrefix(text, "+") {
		size += v.Size
	}
	switch {
	case size < v.Size:
		return api.Failf("shrinking disks is not supported")
	case size == v.Size:
		return nil
	}
	return rz.grow(ctx, t, g, d, v, size)
}

func (rz *resizer) grow(ctx context.Context, t *tasks.Task, g *kernel.Guest, d qm.Drive, v *storage.Volume, size int64) error {
	rz.k.Mu.Lock()
	s := rz.store.Storage(v.Storage)
	file := s.FilePath(v.Name)
	rz.k.Mu.Unlock()
	if s.Kind().FileBased && strings.HasPrefix(path.Base(v.Name), "base-") {
		// Base files are immutable.
		return api.Failf("command '/usr/bin/qemu-img resize -f %s %s %d' failed: exit code 1", v.Format(), file, size)
	}
	release, err := rz.allocator.LockStorage(ctx, t, g.Host, s)
	if err != nil {
		return err
	}
	defer release()
	if err := rz.k.Clock.Sleep(ctx, rz.store.LatencyOf(s).Alloc); err != nil {
		return err
	}
	rz.k.Mu.Lock()
	defer rz.k.Mu.Unlock()
	v.Size = size
	d.Opts["size"] = qm.FormatSize(size)
	g.Config.Options[d.Key] = d.String()
	if s.Kind().FileBased {
		t.Logf("Image resized.")
	} else if strings.HasPrefix(s.Type, "lvm") {
		t.Logf("  Size of logical volume %s/%s changed.", s.ID, v.Name)
	}
	return nil
}
