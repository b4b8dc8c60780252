// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// getStorages lists the storages of a host with their usage.
func (d *definitions) getStorages(r *api.Request) (any, error) {
	rows := []api.Row{}
	for _, s := range d.storages {
		if !s.IsAvailableOn(r.Host) || !d.k.Access.HasAny(r.Who, "/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			continue
		}
		if only, ok := r.Value("storage"); ok && only != s.ID {
			continue
		}
		requested := schema.SplitList(r.Params.Values["content"])
		if len(requested) > 0 && !slices.ContainsFunc(requested, s.HasContent) {
			continue
		}
		out := d.storageFigures(s, r.Host)
		out["storage"] = s.ID
		if s.Size > 0 {
			used, _ := out["used"].(int64)
			out["used_fraction"] = float64(used) / float64(s.Size)
		}
		rows = append(rows, out)
	}
	return rows, nil
}

func (d *definitions) storageFigures(s *Storage, host string) api.Row {
	out := api.Row{
		"type": s.Type, "content": strings.Join(s.Content, ","), "enabled": 1, "active": api.BoolInt(s.IsActiveOn(host)), "shared": api.BoolInt(s.Shared),
		"total": int64(0), "used": int64(0), "avail": int64(0),
	}
	if s.IsActiveOn(host) {
		used := d.usage(s, host)
		out["total"], out["used"], out["avail"] = s.Size, used, s.Size-used
	}
	return out
}

func (d *definitions) getStorageStatus(r *api.Request) (any, error) {
	s := d.Storage(r.Params.Values["storage"])
	if s == nil || !s.IsAvailableOn(r.Host) {
		return nil, api.BadParam("storage", "No such storage.")
	}
	return d.storageFigures(s, r.Host), nil
}

// definition returns a storage as storage.cfg defines it.
func (d *definitions) definition(s *Storage) api.Row {
	out := api.Row{"storage": s.ID, "type": s.Type, "content": strings.Join(s.Content, ","), "digest": d.storageDigest()}
	api.SetNonEmpty(out, "path", s.Path)
	api.SetNonEmpty(out, "server", s.Server)
	switch s.Type {
	case "lvmthin":
		out["vgname"], out["thinpool"] = "pve", "data"
	case "lvm":
		out["vgname"] = s.ID
	case "zfspool", "rbd":
		out["pool"] = s.ID
	}
	if s.Shared && !s.Kind().shared {
		out["shared"] = 1
	}
	api.SetNonEmpty(out, "nodes", strings.Join(s.Hosts, ","))
	if s.mkdir != "" {
		out["mkdir"] = api.BoolInt(s.mkdir == "1")
	}
	return out
}

func (d *definitions) storageDigest() string {
	var b strings.Builder
	for _, s := range d.storages {
		fmt.Fprintf(&b, "%s: %s\n%v\n", s.Type, s.ID, s.Content)
	}
	return api.SHA1(b.String())
}

func (d *definitions) getDefinitions(r *api.Request) (any, error) {
	rows := []api.Row{}
	for _, s := range d.storages {
		if typ, ok := r.Value("type"); ok && typ != s.Type {
			continue
		}
		if d.k.Access.HasAny(r.Who, "/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			rows = append(rows, d.definition(s))
		}
	}
	return rows, nil
}

func (d *definitions) getDefinition(r *api.Request) (any, error) {
	s := d.Storage(r.Params.Values["storage"])
	if s == nil {
		return nil, api.Failf("storage '%s' does not exist", r.Params.Values["storage"])
	}
	return d.definition(s), nil
}

func (d *definitions) postDefinition(_ context.Context, r *api.Request) (api.Response, error) {
	id, typ := r.Params.Values["storage"], r.Params.Values["type"]
	d.k.Mu.Lock()
	exists := d.Storage(id) != nil
	d.k.Mu.Unlock()
	switch {
	case exists:
		return api.Response{}, api.Failf("create storage failed: storage ID '%s' already defined", id)
	case !IsKnownType(typ):
		return api.Response{}, api.Failf("create storage failed: the simulator has no storage type '%s'", typ)
	}
	s := &Storage{
		ID: id, Type: typ, Path: r.Params.Values["path"], Shared: r.Bool("shared"), Size: 100 << 30,
		Content: schema.SplitList(r.Params.Values["content"]), Hosts: schema.SplitList(r.Params.Values["nodes"]),
		mkdir: r.Params.Values["mkdir"], Server: r.Params.Values["server"],
	}
	d.AddStorage(s)
	return api.Response{Data: api.Row{"storage": id, "type": typ}}, nil
}

func (d *definitions) putDefinition(r *api.Request) (any, error) {
	s := d.Storage(r.Params.Values["storage"])
	if s == nil {
		return nil, api.Failf("update storage failed: storage '%s' does not exist", r.Params.Values["storage"])
	}
	if v, ok := r.Value("content"); ok {
		s.Content = strings.FieldsFunc(v, func(c rune) bool { return c == ',' || c == ' ' })
	}
	if _, ok := r.Value("disable"); ok {
		s.Disabled = r.Bool("disable")
	}
	return api.Row{"storage": s.ID, "type": s.Type}, nil
}

func (d *definitions) deleteDefinition(r *api.Request) error {
	id := r.Params.Values["storage"]
	for i, s := range d.Storages() {
		if s.ID == id {
			d.storages = append(d.storages[:i:i], d.storages[i+1:]...)
			return nil
		}
	}
	return api.Failf("delete storage failed: storage '%s' does not exist", id)
}

func (ct *contents) getContent(r *api.Request) (any, error) {
	s, err := ct.CheckStorage(r.Params.Values["storage"], r.Host)
	if err == nil {
		err = s.checkActive(r.Host, "data")
	}
	if err != nil {
		return nil, err
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
	return rows, nil
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
	if s.Kind().FileBased && strings.HasPrefix(path.Base(v.Name), "base-") {
		out["parent"] = nil
	}
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

func (ct *contents) getVolume(r *api.Request) (any, error) {
	volid := volid(r)
	s, err := ct.CheckStorage(strings.SplitN(volid, ":", 2)[0], r.Host)
	if err != nil {
		return nil, err
	}
	v := ct.Volume(r.Host, volid)
	if _, name, _ := strings.Cut(volid, ":"); v == nil && s.Kind().FileBased && strings.HasPrefix(name, "iso/") && !isoName.MatchString(name) {
		return nil, api.Failf("unable to parse directory volume name '%s'", name)
	}
	if v == nil {
		return nil, api.Failf("volume_size_info on '%s' failed - no format", volid)
	}
	if !ct.canRead(r, v) {
		return nil, api.Denied("/storage/" + s.ID + ", Datastore.Allocate")
	}
	format := v.Format()
	if format == "iso" {
		format = "raw"
	}
	// Files use whole blocks.
	used := (v.Used + 4095) / 4096 * 4096
	return api.Row{"path": s.FilePath(v.Name), "format": format, "size": v.Size, "used": used}, nil
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
