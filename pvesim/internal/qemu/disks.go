// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// createDisks allocates, imports or checks the volume of each drive and updates the options. It returns the new
// volumes, also if it fails.
func (ds *disks) createDisks(ctx context.Context, t *tasks.Task, host string, vmid int, options map[string]string) (made []string, err error) {
	for _, key := range qm.DriveKeys(options) {
		d, ok := qm.ParseDrive(key, options[key])
		if !ok {
			return made, api.BadParam(key, "unable to parse drive options")
		}
		if !d.HasVolume() {
			continue
		}
		d, fresh, err := ds.createDisk(ctx, t, host, vmid, d)
		if fresh != "" {
			made = append(made, fresh)
		}
		if err != nil {
			return made, err
		}
		options[key] = d.String()
		if fresh != "" && t != nil {
			t.Logf("%s: successfully created disk '%s'", key, d)
		}
	}
	return made, nil
}

func (ds *disks) createDisk(ctx context.Context, t *tasks.Task, host string, vmid int, d qm.Drive) (out qm.Drive, made string, err error) {
	ds.k.Mu.Lock()
	s, err := ds.store.CheckStorage(d.Storage(), host)
	existing := ds.store.Volume(host, d.File)
	ds.k.Mu.Unlock()
	if err != nil {
		return d, "", err
	}
	if strings.HasSuffix(d.File, ":cloudinit") {
		v, err := ds.allocator.AllocateCloudInit(ctx, t, host, s, vmid)
		if err != nil {
			return d, "", err
		}
		d.File, d.Opts = v.ID(), map[string]string{"media": "cdrom"}
		return d, v.ID(), nil
	}
	m := newDisk.FindStringSubmatch(d.File)
	if m == nil {
		if existing == nil {
			return d, "", api.Failf("volume '%s' does not exist", d.File)
		}
		d.Opts["size"] = qm.FormatSize(existing.Size)
		return d, "", nil
	}
	return ds.newDisk(ctx, t, host, vmid, d, s, m[2])
}

func (ds *disks) newDisk(ctx context.Context, t *tasks.Task, host string, vmid int, d qm.Drive, s *storage.Storage, gib string) (qm.Drive, string, error) {
	format := d.Opts["format"]
	delete(d.Opts, "format")
	size := parseGiB(gib)
	source := d.Opts["import-from"]
	delete(d.Opts, "import-from")
	var from *storage.Volume
	if source != "" {
		ds.k.Mu.Lock()
		if from = ds.store.Volume(host, source); from != nil {
			size = ds.store.VirtualSize(from)
		}
		ds.k.Mu.Unlock()
		if from == nil {
			return d, "", ds.missingSourceError(source)
		}
		t.Logf("create full clone of drive (%s)", source)
	} else if d.Key == "efidisk0" {
		size = 528 << 10
	} else if d.Key == "tpmstate0" {
		size = 4 << 20
	}
	v, err := ds.allocator.Allocate(ctx, t, storage.Allocation{Host: host, Storage: s, Owner: vmid, Format: format, Size: size})
	if err != nil {
		return d, "", err
	}
	if from != nil {
		if err := ds.allocator.CopyVolume(ctx, t, s, from, v); err != nil {
			return d, v.ID(), err
		}
	}
	d.File = v.ID()
	d.Opts["size"] = qm.FormatSize(v.Size)
	return d, v.ID(), nil
}

func (ds *disks) missingSourceError(volid string) error {
	ds.k.Mu.Lock()
	defer ds.k.Mu.Unlock()
	id, name, _ := strings.Cut(volid, ":")
	if s := ds.store.Storage(id); s != nil && s.Kind().FileBased {
		return api.Failf("failed to stat '%s'", s.FilePath(name))
	}
	return api.Failf("volume '%s' does not exist", volid)
}

func parseGiB(text string) int64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return int64(math.Round(f * (1 << 30)))
}

// postMoveDisk moves a disk to another storage.
func (ds *disks) postMoveDisk(_ context.Context, r *api.Request) (api.Response, error) {
	to := r.Params.Values["storage"]
	if r.Params.Values["target-vmid"] != "" || to == "" {
		return api.Response{}, api.Failf("moving a disk to another VM is not part of the simulator")
	}
	if err := ds.k.Require(r, "/storage/"+to, "Datastore.AllocateSpace"); err != nil {
		return api.Response{}, err
	}
	return kernel.TaskResponse(ds.k.ForkVM(r, "qmmove", func(ctx context.Context, t *tasks.Task) error { return ds.moveDisk(ctx, t, r, to) }))
}

func (ds *disks) moveDisk(ctx context.Context, t *tasks.Task, r *api.Request, to string) error {
	key := r.Params.Values["disk"]
	ds.k.Mu.Lock()
	g := ds.k.FindVM(r.Host, r.VMID)
	s, err := ds.store.CheckStorage(to, r.Host)
	var d qm.Drive
	var from *storage.Volume
	switch {
	case err != nil:
	case g == nil:
		err = kernel.MissingConfigError(r.Host, r.VMID)
	case g.Config.Lock() != "":
		err = api.Failf("VM is locked (%s)", g.Config.Lock())
	case g.Config.Options[key] == "":
		err = api.Failf("disk '%s' does not exist", key)
	default:
		d, _ = qm.ParseDrive(key, g.Config.Options[key])
		if from = ds.store.Volume(r.Host, d.File); from == nil {
			err = api.Failf("disk '%s' has no associated volume", key)
		}
	}
	ds.k.Mu.Unlock()
	if err != nil {
		return err
	}
	t.Logf("create full clone of drive %s (%s)", key, d.File)
	format := r.Params.Values["format"]
	if format == "" && s.Kind().FileBased {
		format = from.Format()
	}
	v, err := ds.allocator.Allocate(ctx, t, storage.Allocation{Host: r.Host, Storage: s, Owner: r.VMID, Format: format, Size: from.Size})
	if err != nil {
		return api.Failf("storage migration failed: %v", err)
	}
	if err := ds.allocator.CopyVolume(ctx, t, s, from, v); err != nil {
		ds.allocator.DiscardVolumes(t, r.Host, []string{v.ID()})
		return api.Failf("storage migration failed: %v", err)
	}
	ds.k.Mu.Lock()
	defer ds.k.Mu.Unlock()
	old := g.Config.Options[key]
	d.File = v.ID()
	g.Config.Options[key] = d.String()
	ds.store.ReleaseDrive(g, key, old, d.String(), r.Bool("delete"))
	return nil
}

// putResize grows a disk in a task. Shrinking fails in the task.
func (rz *resizer) putResize(_ context.Context, r *api.Request) (api.Response, error) {
	return kernel.TaskResponse(rz.k.ForkVM(r, "resize", func(ctx context.Context, t *tasks.Task) error { return rz.resize(ctx, t, r) }))
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
		preallocation := ""
		if rz.k.Version.ResizePreallocates {
			preallocation = "'--preallocation=metadata' "
		}
		return api.Failf("command '/usr/bin/qemu-img resize %s-f %s %s %d' failed: exit code 1", preallocation, v.Format(), file, size)
	}
	return rz.allocator.Change(ctx, t, g.Host, s, rz.store.LatencyOf(s).Alloc, func() error {
		v.Size = size
		d.Opts["size"] = qm.FormatSize(size)
		g.Config.Options[d.Key] = d.String()
		g.Instance.NotifyUpdated()
		if s.Kind().FileBased && !g.IsRunning() { // QEMU resizes the disks of a running VM itself
			t.Logf("Image resized.")
		} else if strings.HasPrefix(s.Type, "lvm") {
			t.Logf("  Size of logical volume %s/%s changed.", s.ID, v.Name)
		}
		return nil
	})
}

// postTemplate converts a VM to a template.
func (tm *templates) postTemplate(_ context.Context, r *api.Request) (api.Response, error) {
	if _, err := tm.checkTemplate(r); err != nil {
		return api.Response{}, err
	}
	return kernel.TaskResponse(tm.k.ForkVM(r, "qmtemplate", func(context.Context, *tasks.Task) error {
		g, err := tm.checkTemplate(r)
		if err != nil {
			return err
		}
		tm.k.Mu.Lock()
		defer tm.k.Mu.Unlock()
		return tm.convertToTemplate(g)
	}))
}

func (tm *templates) checkTemplate(r *api.Request) (*kernel.Guest, error) {
	tm.k.Mu.Lock()
	defer tm.k.Mu.Unlock()
	g := tm.k.FindVM(r.Host, r.VMID)
	switch {
	case g == nil:
		return nil, kernel.MissingConfigError(r.Host, r.VMID)
	case g.Config.Lock() != "":
		return nil, api.Failf("VM is locked (%s)", g.Config.Lock())
	case len(g.Config.Snapshots) > 0:
		return nil, api.Failf("unable to create template, because VM contains snapshots")
	case g.Config.IsTemplate() && r.Params.Values["disk"] == "":
		return nil, api.Failf("you can't convert a template to a template")
	case g.IsRunning():
		return nil, api.Failf("you can't convert a VM to template if VM is running")
	}
	return g, nil
}

func (tm *templates) convertToTemplate(g *kernel.Guest) error {
	for _, d := range qm.VolumeDrives(g.Config.Options) {
		s, v := tm.store.Storage(d.Storage()), tm.store.Volume(g.Host, d.File)
		if d.IsCDROM() || v == nil || strings.HasPrefix(path.Base(v.Name), "base-") {
			continue
		}
		if !s.Kind().Template {
			return api.Failf("volume '%s' does not support template/clone", d.File)
		}
		tm.store.ChangeVolume(v, func(v *storage.Volume) {
			v.Name = path.Join(path.Dir(v.Name), strings.Replace(path.Base(v.Name), "vm-", "base-", 1))
		})
		d.File = s.VolumeID(v)
		g.Config.Options[d.Key] = d.String()
	}
	g.Config.Options["template"] = "1"
	return nil
}
