// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (ct *contents) getContent(_ context.Context, r *api.Request) (api.Response, error) {
	ct.k.Mu.Lock()
	defer ct.k.Mu.Unlock()
	s, err := ct.CheckStorage(r.Params.Values["storage"], r.Host)
	if err != nil {
		return api.Response{}, err
	}
	rows := []api.Row{}
	for _, key := range slices.Sorted(maps.Keys(ct.volumes)) {
		v := ct.volumes[key]
		if v.Storage != s.ID || (v.Host != "" && v.Host != r.Host) {
			continue
		}
		if c, ok := r.Value("content"); ok && c != v.Content() {
			continue
		}
		if id, ok := r.Value("vmid"); ok && id != strconv.Itoa(v.Owner) {
			continue
		}
		if ct.canRead(r, v) {
			rows = append(rows, ct.contentRow(s, v))
		}
	}
	return api.Response{Data: rows}, nil
}

// canRead reports whether the caller can see a volume. Files need privileges on the storage, disks on their VM.
func (ct *contents) canRead(r *api.Request, v *Volume) bool {
	at := "/storage/" + v.Storage
	if ct.k.Access.Has(r.Who, at, "Datastore.Allocate") {
		return true
	}
	switch v.Content() {
	case "iso", "vztmpl", "import":
		return ct.k.Access.HasAny(r.Who, at, "Datastore.AllocateSpace", "Datastore.Audit")
	case "images":
		return ct.k.Access.Has(r.Who, "/vms/"+strconv.Itoa(v.Owner), "VM.Config.Disk")
	case "backup":
		return ct.k.Access.Has(r.Who, at, "Datastore.AllocateSpace") && ct.k.Access.Has(r.Who, "/vms/"+strconv.Itoa(v.Owner), "VM.Backup")
	}
	return false
}

func (ct *contents) contentRow(s *Storage, v *Volume) api.Row {
	out := api.Row{"volid": v.ID(), "content": v.Content(), "format": v.Format(), "size": v.Size}
	if v.Content() != "images" {
		out["ctime"] = v.CTime
		return out
	}
	out["vmid"] = v.Owner
	if v.Base != "" {
		out["volid"], out["parent"] = s.VolumeID(v), v.Base
	}
	if s.Kind().FileBased {
		out["used"], out["ctime"] = v.Used, v.CTime
	}
	return out
}

// volid returns the volume ID in the path; "iso/x.iso" is short for "local:iso/x.iso".
func volid(r *api.Request) string {
	v := r.Params.Values["volume"]
	if id, ok := r.Value("storage"); ok && !strings.HasPrefix(v, id+":") && !strings.Contains(v, ":") {
		return id + ":" + v
	}
	return v
}

func (ct *contents) getVolume(_ context.Context, r *api.Request) (api.Response, error) {
	ct.k.Mu.Lock()
	defer ct.k.Mu.Unlock()
	volid := volid(r)
	s, err := ct.CheckStorage(strings.SplitN(volid, ":", 2)[0], r.Host)
	if err != nil {
		return api.Response{}, err
	}
	v := ct.Volume(r.Host, volid)
	if v == nil {
		return api.Response{}, api.Failf("volume_size_info on '%s' failed - no format", volid)
	}
	if !ct.canRead(r, v) {
		return api.Response{}, api.Denied("/storage/" + s.ID + ", Datastore.Allocate")
	}
	format := v.Format()
	if format == "iso" {
		format = "raw"
	}
	// Files use whole blocks.
	used := (v.Used + 4095) / 4096 * 4096
	return api.Response{Data: api.Row{"path": s.FilePath(v.Name), "format": format, "size": v.Size, "used": used}}, nil
}

func (ct *contents) postContent(ctx context.Context, r *api.Request) (api.Response, error) {
	ct.k.Mu.Lock()
	s, err := ct.CheckStorage(r.Params.Values["storage"], r.Host)
	ct.k.Mu.Unlock()
	if err != nil {
		return api.Response{}, err
	}
	size, ok := qm.ParseSize(r.Params.Values["size"])
	if !ok {
		return api.Response{}, api.BadParam("size", "value does not match the regex pattern")
	}
	if !strings.ContainsAny(r.Params.Values["size"], "KMGT") {
		size <<= 10 // a plain number is in KiB
	}
	name := r.Params.Values["filename"]
	format := cmp.Or(r.Params.Values["format"], strings.TrimPrefix(name[strings.LastIndex(name, ".")+1:], "."))
	if s.Kind().FileBased {
		name = r.Params.Values["vmid"] + "/" + name
	}
	v, err := ct.allocator.Allocate(ctx, nil, Allocation{Host: r.Host, Storage: s, Owner: r.VMID, Format: format, name: name, Size: size})
	if err != nil {
		return api.Response{}, err
	}
	return api.Response{Data: v.ID()}, nil
}

// deleteVolume removes a volume in a task, even if a VM uses it.
func (ct *contents) deleteVolume(ctx context.Context, r *api.Request) (api.Response, error) {
	volid := volid(r)
	storage, name, _ := strings.Cut(volid, ":")
	if err := ct.k.Require(r, "/storage/"+storage, "Datastore.Allocate"); err != nil {
		return api.Response{}, err
	}
	ct.k.Mu.Lock()
	s, err := ct.CheckStorage(storage, r.Host)
	v := ct.Volume(r.Host, volid)
	ct.k.Mu.Unlock()
	if err != nil {
		return api.Response{}, err
	}
	id := storage
	if v != nil && v.Content() == "images" {
		id = fmt.Sprintf("%d@%s", v.Owner, storage)
	}
	t := ct.k.Fork(r, "imgdel", id, func(ctx context.Context, t *tasks.Task) error {
		if v == nil {
			t.Logf("disk image '%s' does not exist", s.FilePath(name))
		}
		if err := ct.allocator.FreeVolume(ctx, t, r.Host, volid); err != nil {
			return err
		}
		t.Logf("Removed volume '%s'", volid)
		return nil
	})
	return ct.k.WaitForTask(ctx, r, t, "delay")
}
