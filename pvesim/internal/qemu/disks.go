// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"math"
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
		if existing.Content() == "images" {
			d.Opts["size"] = qm.FormatSize(existing.Size)
		}
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
		from = ds.store.Volume(host, source)
		ds.k.Mu.Unlock()
		if from == nil {
			return d, "", ds.missingSourceError(source)
		}
		ds.k.Mu.Lock()
		size = ds.store.VirtualSize(from)
		ds.k.Mu.Unlock()
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
	return kernel.TaskResponse(ds.k.Fork(r, "qmmove", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		release, err := ds.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		return ds.moveDisk(ctx, t, r, to)
	})), nil
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
		ds.allocator.DiscardVolumes(r.Host, []string{v.ID()})
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
