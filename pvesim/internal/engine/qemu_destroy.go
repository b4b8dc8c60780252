// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (e *Engine) deleteQemu(_ context.Context, r *Request) (Response, error) {
	if err := rootOption(r); err != nil {
		return Response{}, err
	}
	if _, err := e.checkDestroy(r); err != nil {
		return Response{}, err
	}
	t := e.fork(r, "qmdestroy", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.destroy(ctx, t, r)
	})
	return upid(t), nil
}

// checkDestroy runs before the answer and again in the task.
func (e *Engine) checkDestroy(r *Request) (*Guest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	_, managed := e.haState(r.vmid)
	switch {
	case g == nil:
		return nil, missingConfig(r.host, r.vmid)
	case g.Config.On("protection", false):
		return nil, failf("can't remove VM %d - protection mode enabled", r.vmid)
	case managed && !r.on("purge"):
		return nil, failf("unable to remove VM %d - used in HA resources and purge parameter not set.", r.vmid)
	case g.running():
		return nil, failf("VM %d is running - destroy failed", r.vmid)
	}
	return g, nil
}

func (e *Engine) destroy(ctx context.Context, t *tasks.Task, r *Request) error {
	release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	g, err := e.checkDestroy(r)
	if err != nil {
		return err
	}
	volids, err := e.markDestroyed(r, g)
	if err != nil {
		return err
	}
	for _, id := range volids {
		if err := e.free(ctx, t, r.host, id); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// A volume that cannot be removed is left behind; the VM goes all the same.
			t.Warnf("Could not remove disk '%s', check manually: %v", id, err)
		}
	}
	if r.on("destroy-unreferenced-disks") {
		e.freeUnreferenced(r.vmid)
	}
	e.forgetAccess(ctx, t, r.vmid)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.firewall.forget(r.vmid)
	if r.on("purge") {
		t.Logf("purging VM %d from related configurations..", r.vmid)
		if e.haRemove(r.vmid) {
			t.Logf("NOTE: removed VM %d from HA resource configuration.", r.vmid)
		}
	}
	delete(e.guests, r.vmid)
	return nil
}

// markDestroyed checks the disks and turns the config into a zombie: "lock: destroyed" and nothing else.
func (e *Engine) markDestroyed(r *Request, g *Guest) (volids []string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if lock := g.Config.Lock(); lock != "" && !r.on("skiplock") {
		return nil, failf("VM is locked (%s)", lock)
	}
	for key, v := range g.Config.Options {
		if !qm.IsDriveKey(key) && !strings.HasPrefix(key, "unused") {
			continue
		}
		d, ok := qm.ParseDrive(key, v)
		if !ok || !d.HasVolume() {
			continue
		}
		vol := e.volume(r.host, d.File)
		if vol == nil || vol.Content() != "images" || vol.Owner != r.vmid {
			continue
		}
		if g.Config.IsTemplate() && e.hasChildren(vol) {
			return nil, failf("base volume '%s' is still in use by linked cloned", d.File)
		}
		volids = append(volids, d.File)
	}
	if err := e.writable(configFile(r.host, r.vmid)); err != nil {
		return nil, err
	}
	g.Config = qm.New(map[string]string{"lock": "destroyed"})
	return volids, nil
}

// freeUnreferenced deletes whatever carries the VMID, on all storages, whoever put it there.
func (e *Engine) freeUnreferenced(vmid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, v := range e.volumes {
		if v.Content() == "images" && v.Owner == vmid && !e.hasChildren(v) {
			delete(e.volumes, key)
		}
	}
}

// forgetAccess removes ACLs and pool membership under the cluster-wide lock of user.cfg.
func (e *Engine) forgetAccess(ctx context.Context, t *tasks.Task, vmid int) {
	release, err := e.Locks.Cluster(ctx, "file-user_cfg", 10*time.Second)
	if err != nil {
		t.Warnf("access permissions cleanup for VM %d failed: %v", vmid, err)
		return
	}
	defer release()
	e.Access.ForgetGuest(vmid)
}

// putResize grows a disk in a task; shrinking fails there.
func (e *Engine) putResize(_ context.Context, r *Request) (Response, error) {
	if err := rootOption(r); err != nil {
		return Response{}, err
	}
	t := e.fork(r, "resize", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		return e.resize(ctx, t, r)
	})
	return upid(t), nil
}

func (e *Engine) resize(ctx context.Context, t *tasks.Task, r *Request) error {
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	disk := r.Params.Values["disk"]
	var v *Volume
	var d qm.Drive
	err := func() error {
		switch {
		case g == nil:
			return missingConfig(r.host, r.vmid)
		case r.Params.Values["digest"] != "" && r.Params.Values["digest"] != g.Config.Digest():
			return failf("checksum mismatch (file change by other user?)")
		case g.Config.Lock() != "" && !r.on("skiplock"):
			return failf("VM is locked (%s)", g.Config.Lock())
		case g.Config.Options[disk] == "":
			return failf("disk '%s' does not exist", disk)
		}
		d, _ = qm.ParseDrive(disk, g.Config.Options[disk])
		if d.IsCDROM() {
			return failf("you can't resize a cdrom")
		}
		if v = e.volume(r.host, d.File); v == nil {
			return failf("Could not determine current size of volume '%s'", d.File)
		}
		return nil
	}()
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err := e.need(r, "/storage/"+v.Storage, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	text := r.Params.Values["size"]
	size, _ := qm.ParseSize(strings.TrimPrefix(text, "+"))
	if strings.HasPrefix(text, "+") {
		size += v.Size
	}
	switch {
	case size < v.Size:
		return failf("shrinking disks is not supported")
	case size == v.Size:
		return nil
	}
	return e.grow(ctx, t, g, d, v, size)
}

func (e *Engine) grow(ctx context.Context, t *tasks.Task, g *Guest, d qm.Drive, v *Volume, size int64) error {
	e.mu.Lock()
	s := e.storage(v.Storage)
	file := s.file(v.Name)
	e.mu.Unlock()
	if s.kind().fileBased && strings.HasPrefix(path.Base(v.Name), "base-") {
		// Base files are immutable.
		return failf("command '/usr/bin/qemu-img resize -f %s %s %d' failed: exit code 1", v.Format(), file, size)
	}
	release, err := e.lockStorage(ctx, t, g.Host, s)
	if err != nil {
		return err
	}
	defer release()
	if err := e.Clock.Sleep(ctx, e.latencyOf(s).Alloc); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	v.Size = size
	d.Opts["size"] = qm.FormatSize(size)
	g.Config.Options[d.Key] = d.String()
	if s.kind().fileBased {
		t.Logf("Image resized.")
	} else if strings.HasPrefix(s.Type, "lvm") {
		t.Logf("  Size of logical volume %s/%s changed.", s.ID, v.Name)
	}
	return nil
}

// postTemplate makes base volumes of a VM's disks.
func (e *Engine) postTemplate(_ context.Context, r *Request) (Response, error) {
	if _, err := e.checkTemplate(r); err != nil {
		return Response{}, err
	}
	t := e.fork(r, "qmtemplate", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		g, err := e.checkTemplate(r)
		if err != nil {
			return err
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.makeTemplate(g)
	})
	return upid(t), nil
}

func (e *Engine) checkTemplate(r *Request) (*Guest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	switch {
	case g == nil:
		return nil, missingConfig(r.host, r.vmid)
	case g.Config.Lock() != "":
		return nil, failf("VM is locked (%s)", g.Config.Lock())
	case len(g.Config.Snapshots) > 0:
		return nil, failf("unable to create template, because VM contains snapshots")
	case g.Config.IsTemplate() && r.Params.Values["disk"] == "":
		return nil, failf("you can't convert a template to a template")
	case g.running():
		return nil, failf("you can't convert a VM to template if VM is running")
	}
	return g, nil
}

func (e *Engine) makeTemplate(g *Guest) error {
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || d.IsCDROM() || !d.HasVolume() {
			continue
		}
		s, v := e.storage(d.Storage()), e.volume(g.Host, d.File)
		if v == nil || strings.HasPrefix(path.Base(v.Name), "base-") {
			continue
		}
		if !s.kind().template {
			return failf("volume '%s' does not support template/clone", d.File)
		}
		e.removeVolume(g.Host, d.File)
		v.Name = path.Join(path.Dir(v.Name), strings.Replace(path.Base(v.Name), "vm-", "base-", 1))
		e.putVolume(v)
		d.File = s.linkedID(v)
		g.Config.Options[key] = d.String()
	}
	g.Config.Options["template"] = "1"
	return nil
}
