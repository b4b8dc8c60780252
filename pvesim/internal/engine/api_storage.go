// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// getStorages lists the storages of a host with their figures.
func (e *Engine) getStorages(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	for _, s := range e.definitions {
		if !s.availableOn(r.host) || !e.Access.HasAny(r.Who, "/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			continue
		}
		if only, ok := r.value("storage"); ok && only != s.ID {
			continue
		}
		wanted := schema.SplitList(r.Params.Values["content"])
		if len(wanted) > 0 && !slices.ContainsFunc(wanted, s.holds) {
			continue
		}
		out := e.storageFigures(s, r.host)
		out["storage"] = s.ID
		if s.Size > 0 {
			used, _ := out["used"].(int64)
			out["used_fraction"] = float64(used) / float64(s.Size)
		}
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

func (e *Engine) storageFigures(s *Storage, host string) row {
	used := e.usage(s, host)
	return row{
		"type": s.Type, "content": strings.Join(s.Content, ","), "enabled": 1, "active": 1, "shared": boolInt(s.Shared),
		"total": s.Size, "used": used, "avail": s.Size - used,
	}
}

func (e *Engine) getStorageStatus(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.storage(r.Params.Values["storage"])
	if s == nil || !s.availableOn(r.host) {
		return Response{}, badParam("storage", "No such storage.")
	}
	return Response{Data: e.storageFigures(s, r.host)}, nil
}

// definition is a storage as storage.cfg describes it.
func (e *Engine) definition(s *Storage) row {
	out := row{"storage": s.ID, "type": s.Type, "content": strings.Join(s.Content, ","), "digest": e.storageDigest()}
	if s.Path != "" {
		out["path"] = s.Path
	}
	switch s.Type {
	case "lvmthin":
		out["vgname"], out["thinpool"] = "pve", "data"
	case "lvm":
		out["vgname"] = s.ID
	case "zfspool", "rbd":
		out["pool"] = s.ID
	}
	if s.Shared && !s.kind().shared {
		out["shared"] = 1
	}
	if len(s.Hosts) > 0 {
		out["nodes"] = strings.Join(s.Hosts, ",")
	}
	return out
}

func (e *Engine) storageDigest() string {
	var b strings.Builder
	for _, s := range e.definitions {
		fmt.Fprintf(&b, "%s: %s\n%v\n", s.Type, s.ID, s.Content)
	}
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

func (e *Engine) getDefinitions(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	for _, s := range e.definitions {
		if typ, ok := r.value("type"); ok && typ != s.Type {
			continue
		}
		if e.Access.HasAny(r.Who, "/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			rows = append(rows, e.definition(s))
		}
	}
	return Response{Data: rows}, nil
}

func (e *Engine) getDefinition(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.storage(r.Params.Values["storage"])
	if s == nil {
		return Response{}, failf("storage '%s' does not exist", r.Params.Values["storage"])
	}
	return Response{Data: e.definition(s)}, nil
}

func (e *Engine) postDefinition(_ context.Context, r *Request) (Response, error) {
	id, typ := r.Params.Values["storage"], r.Params.Values["type"]
	e.mu.Lock()
	exists := e.storage(id) != nil
	e.mu.Unlock()
	switch {
	case exists:
		return Response{}, failf("create storage failed: storage ID '%s' already defined", id)
	case !KnownStorageType(typ):
		return Response{}, failf("create storage failed: the simulator has no storage type '%s'", typ)
	}
	s := &Storage{
		ID: id, Type: typ, Path: r.Params.Values["path"], Shared: r.on("shared"), Size: 100 << 30,
		Content: schema.SplitList(r.Params.Values["content"]), Hosts: schema.SplitList(r.Params.Values["nodes"]),
	}
	e.AddStorage(s)
	return Response{Data: row{"storage": id, "type": typ}}, nil
}

// mayRead decides who sees a volume: files with the storage's rights, disks with rights on their VM.
func (e *Engine) mayRead(r *Request, v *Volume) bool {
	at := "/storage/" + v.Storage
	if e.Access.Has(r.Who, at, "Datastore.Allocate") {
		return true
	}
	switch v.Content() {
	case "iso", "vztmpl", "import":
		return e.Access.HasAny(r.Who, at, "Datastore.AllocateSpace", "Datastore.Audit")
	case "images":
		return e.Access.Has(r.Who, "/vms/"+strconv.Itoa(v.Owner), "VM.Config.Disk")
	case "backup":
		return e.Access.Has(r.Who, at, "Datastore.AllocateSpace") && e.Access.Has(r.Who, "/vms/"+strconv.Itoa(v.Owner), "VM.Backup")
	}
	return false
}

func (e *Engine) getContent(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s, err := e.checkStorage(r.Params.Values["storage"], r.host)
	if err != nil {
		return Response{}, err
	}
	rows := []row{}
	for _, key := range slices.Sorted(maps.Keys(e.volumes)) {
		v := e.volumes[key]
		if v.Storage != s.ID || (v.Host != "" && v.Host != r.host) {
			continue
		}
		if c, ok := r.value("content"); ok && c != v.Content() {
			continue
		}
		if id, ok := r.value("vmid"); ok && id != strconv.Itoa(v.Owner) {
			continue
		}
		if e.mayRead(r, v) {
			rows = append(rows, e.contentRow(s, v))
		}
	}
	return Response{Data: rows}, nil
}

func (e *Engine) contentRow(s *Storage, v *Volume) row {
	out := row{"volid": v.ID(), "content": v.Content(), "format": v.Format(), "size": v.Size}
	if v.Content() != "images" {
		out["ctime"] = v.CTime
		return out
	}
	out["vmid"] = v.Owner
	if v.Base != "" {
		out["volid"], out["parent"] = s.linkedID(v), v.Base
	}
	if s.kind().fileBased {
		out["used"], out["ctime"] = v.Used, v.CTime
	}
	return out
}

// linkedID is the id of a linked clone in configs: file systems, ZFS and RBD name the base in it.
func (s *Storage) linkedID(v *Volume) string {
	if v.Base == "" || !s.kind().linkedInName {
		return v.ID()
	}
	return v.Storage + ":" + v.Base + "/" + v.Name
}

// volid completes the short form "iso/x.iso" of the path.
func volid(r *Request) string {
	v := r.Params.Values["volume"]
	if id, ok := r.value("storage"); ok && !strings.HasPrefix(v, id+":") && !strings.Contains(v, ":") {
		return id + ":" + v
	}
	return v
}

func (e *Engine) getVolume(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	volid := volid(r)
	s, err := e.checkStorage(strings.SplitN(volid, ":", 2)[0], r.host)
	if err != nil {
		return Response{}, err
	}
	v := e.volume(r.host, volid)
	if v == nil {
		return Response{}, failf("volume_size_info on '%s' failed - no format", volid)
	}
	if !e.mayRead(r, v) {
		return Response{}, denied("/storage/" + s.ID + ", Datastore.Allocate")
	}
	format := v.Format()
	if format == "iso" {
		format = "raw"
	}
	// Files occupy whole blocks.
	used := (v.Used + 4095) / 4096 * 4096
	return Response{Data: row{"path": s.file(v.Name), "format": format, "size": v.Size, "used": used}}, nil
}

func (e *Engine) postContent(ctx context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	s, err := e.checkStorage(r.Params.Values["storage"], r.host)
	e.mu.Unlock()
	if err != nil {
		return Response{}, err
	}
	size, ok := qm.ParseSize(r.Params.Values["size"])
	if !ok {
		return Response{}, badParam("size", "value does not match the regex pattern")
	}
	if !strings.ContainsAny(r.Params.Values["size"], "KMGT") {
		size <<= 10 // a plain number is in KiB
	}
	name := r.Params.Values["filename"]
	format := cmp.Or(r.Params.Values["format"], strings.TrimPrefix(name[strings.LastIndex(name, ".")+1:], "."))
	if s.kind().fileBased {
		name = r.Params.Values["vmid"] + "/" + name
	}
	v, err := e.allocate(ctx, nil, allocation{host: r.host, storage: s, owner: r.vmid, format: format, name: name, size: size})
	if err != nil {
		return Response{}, err
	}
	return Response{Data: v.ID()}, nil
}

// deleteVolume removes a volume in a task. That it is still in a VM's drive does not matter to Proxmox.
func (e *Engine) deleteVolume(ctx context.Context, r *Request) (Response, error) {
	volid := volid(r)
	storage, name, _ := strings.Cut(volid, ":")
	if err := e.need(r, "/storage/"+storage, "Datastore.Allocate"); err != nil {
		return Response{}, err
	}
	e.mu.Lock()
	s, err := e.checkStorage(storage, r.host)
	v := e.volume(r.host, volid)
	e.mu.Unlock()
	if err != nil {
		return Response{}, err
	}
	id := storage
	if v != nil && v.Content() == "images" {
		id = fmt.Sprintf("%d@%s", v.Owner, storage)
	}
	t := e.fork(r, "imgdel", id, func(ctx context.Context, t *tasks.Task) error {
		if v == nil {
			t.Logf("disk image '%s' does not exist", s.file(name))
		}
		if err := e.free(ctx, t, r.host, volid); err != nil {
			return err
		}
		t.Logf("Removed volume '%s'", volid)
		return nil
	})
	return e.awaitBriefly(ctx, r, t, "delay")
}
