// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// getStorages lists the storages of a host with their usage.
func (d *definitions) getStorages(_ context.Context, r *api.Request) (api.Response, error) {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
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
	return api.Response{Data: rows}, nil
}

func (d *definitions) storageFigures(s *Storage, host string) api.Row {
	used := d.usage(s, host)
	return api.Row{
		"type": s.Type, "content": strings.Join(s.Content, ","), "enabled": 1, "active": 1, "shared": api.BoolInt(s.Shared),
		"total": s.Size, "used": used, "avail": s.Size - used,
	}
}

func (d *definitions) getStorageStatus(_ context.Context, r *api.Request) (api.Response, error) {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
	s := d.Storage(r.Params.Values["storage"])
	if s == nil || !s.IsAvailableOn(r.Host) {
		return api.Response{}, api.BadParam("storage", "No such storage.")
	}
	return api.Response{Data: d.storageFigures(s, r.Host)}, nil
}

// definition returns a storage as storage.cfg defines it.
func (d *definitions) definition(s *Storage) api.Row {
	out := api.Row{"storage": s.ID, "type": s.Type, "content": strings.Join(s.Content, ","), "digest": d.storageDigest()}
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
	if s.Shared && !s.Kind().shared {
		out["shared"] = 1
	}
	if len(s.Hosts) > 0 {
		out["nodes"] = strings.Join(s.Hosts, ",")
	}
	return out
}

func (d *definitions) storageDigest() string {
	var b strings.Builder
	for _, s := range d.storages {
		fmt.Fprintf(&b, "%s: %s\n%v\n", s.Type, s.ID, s.Content)
	}
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

func (d *definitions) getDefinitions(_ context.Context, r *api.Request) (api.Response, error) {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
	rows := []api.Row{}
	for _, s := range d.storages {
		if typ, ok := r.Value("type"); ok && typ != s.Type {
			continue
		}
		if d.k.Access.HasAny(r.Who, "/storage/"+s.ID, "Datastore.Audit", "Datastore.AllocateSpace") {
			rows = append(rows, d.definition(s))
		}
	}
	return api.Response{Data: rows}, nil
}

func (d *definitions) getDefinition(_ context.Context, r *api.Request) (api.Response, error) {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
	s := d.Storage(r.Params.Values["storage"])
	if s == nil {
		return api.Response{}, api.Failf("storage '%s' does not exist", r.Params.Values["storage"])
	}
	return api.Response{Data: d.definition(s)}, nil
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
	}
	d.AddStorage(s)
	return api.Response{Data: api.Row{"storage": id, "type": typ}}, nil
}

func (d *definitions) putDefinition(_ context.Context, r *api.Request) (api.Response, error) {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
	s := d.Storage(r.Params.Values["storage"])
	if s == nil {
		return api.Response{}, api.Failf("update storage failed: storage '%s' does not exist", r.Params.Values["storage"])
	}
	if v, ok := r.Value("content"); ok {
		s.Content = strings.FieldsFunc(v, func(c rune) bool { return c == ',' || c == ' ' })
	}
	if _, ok := r.Value("disable"); ok {
		s.Disabled = r.Bool("disable")
	}
	return api.Response{Data: api.Row{"storage": s.ID, "type": s.Type}}, nil
}

func (d *definitions) deleteDefinition(_ context.Context, r *api.Request) (api.Response, error) {
	d.k.Mu.Lock()
	defer d.k.Mu.Unlock()
	id := r.Params.Values["storage"]
	for i, s := range d.Storages() {
		if s.ID == id {
			d.storages = append(d.storages[:i:i], d.storages[i+1:]...)
			return api.Response{}, nil
		}
	}
	return api.Response{}, api.Failf("delete storage failed: storage '%s' does not exist", id)
}
