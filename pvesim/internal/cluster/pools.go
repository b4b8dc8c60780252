// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// getPools lists the resource pools that the caller can audit. With poolid, it returns that pool and its members to all
// callers.
func (ph *poolHandlers) getPools(_ context.Context, r *api.Request) (api.Response, error) {
	if id, ok := r.Value("poolid"); ok {
		out, err := ph.poolDetails(id)
		if err != nil {
			return api.Response{}, err
		}
		return api.Response{Data: []api.Row{out}}, nil
	}
	rows := []api.Row{}
	ph.k.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Pools)) {
			out := api.Row{"poolid": id}
			api.SetNonEmpty(out, "comment", d.Pools[id].Comment)
			rows = append(rows, out)
		}
	})
	rows = slices.DeleteFunc(rows, func(out api.Row) bool {
		return !ph.k.Access.Has(r.Who, fmt.Sprintf("/pool/%v", out["poolid"]), "Pool.Audit")
	})
	return api.Response{Data: rows}, nil
}

func (ph *poolHandlers) getPool(_ context.Context, r *api.Request) (api.Response, error) {
	out, err := ph.poolDetails(r.Params.Values["poolid"])
	return api.Response{Data: out}, err
}

func (ph *poolHandlers) poolDetails(id string) (api.Row, error) {
	var pool *access.Pool
	ph.k.Access.View(func(d *access.Data) {
		if p := d.Pools[id]; p != nil {
			pool = &access.Pool{Comment: p.Comment, VMs: maps.Clone(p.VMs), Storages: maps.Clone(p.Storages)}
		}
	})
	if pool == nil {
		return nil, api.Failf("no such pool '%s'", id)
	}
	ph.k.Mu.Lock()
	defer ph.k.Mu.Unlock()
	members := []any{}
	for _, g := range ph.k.SortedGuests() {
		if pool.VMs[g.VMID] {
			members = append(members, ph.stats.GuestRow(g, ""))
		}
	}
	for _, s := range ph.store.Storages() {
		if !pool.Storages[s.ID] {
			continue
		}
		for _, h := range ph.k.Hosts {
			if s.IsAvailableOn(h.Name) {
				members = append(members, ph.stats.StorageRow(s, h))
			}
		}
	}
	out := api.Row{"members": members, "poolid": id}
	api.SetNonEmpty(out, "comment", pool.Comment)
	return out, nil
}

func (ph *poolHandlers) postPool(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["poolid"]
	return ph.k.ChangeUserConfig(ctx, "create pool", func(d *access.Data) error {
		if d.Pools[id] != nil {
			return fmt.Errorf("pool '%s' already exists", id)
		}
		d.Pools[id] = &access.Pool{ID: id, Comment: r.Params.Values["comment"], VMs: map[int]bool{}, Storages: map[string]bool{}}
		return nil
	})
}

func (ph *poolHandlers) putPool(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["poolid"]
	var members []string
	for _, v := range schema.SplitList(r.Params.Values["vms"]) {
		members = append(members, "/vms/"+v)
	}
	for _, s := range schema.SplitList(r.Params.Values["storage"]) {
		members = append(members, "/storage/"+s)
	}
	for _, path := range members {
		if err := ph.k.CheckPermModify(r, path); err != nil {
			return api.Response{}, err
		}
	}
	return ph.k.ChangeUserConfig(ctx, "update pools", func(d *access.Data) error {
		p := d.Pools[id]
		if p == nil {
			return fmt.Errorf("pool '%s' does not exist", id)
		}
		if c, ok := r.Value("comment"); ok {
			p.Comment = c
		}
		if err := changePoolVMs(d, p, r); err != nil {
			return err
		}
		for _, s := range schema.SplitList(r.Params.Values["storage"]) {
			if r.Bool("delete") {
				delete(p.Storages, s)
			} else {
				p.Storages[s] = true
			}
		}
		return nil
	})
}

func changePoolVMs(d *access.Data, p *access.Pool, r *api.Request) error {
	for _, text := range schema.SplitList(r.Params.Values["vms"]) {
		vmid, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		old := d.PoolOf(vmid)
		switch {
		case r.Bool("delete"):
			if !p.VMs[vmid] {
				return fmt.Errorf("VM %d is not a pool member", vmid)
			}
			delete(p.VMs, vmid)
			continue
		case old == p.ID:
			return fmt.Errorf("VM %d is already a pool member", vmid)
		case old != "" && !r.Bool("allow-move"):
			return fmt.Errorf("VM %d belongs already to pool '%s' and 'allow-move' is not set", vmid, old)
		case old != "":
			delete(d.Pools[old].VMs, vmid)
		}
		p.VMs[vmid] = true
	}
	return nil
}

func (ph *poolHandlers) deletePool(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["poolid"]
	ph.k.Mu.Lock()
	guests := maps.Clone(ph.k.Guests)
	ph.k.Mu.Unlock()
	return ph.k.ChangeUserConfig(ctx, "delete pool", func(d *access.Data) error {
		p := d.Pools[id]
		if p == nil {
			return fmt.Errorf("pool '%s' does not exist", id)
		}
		for vmid := range p.VMs {
			if guests[vmid] != nil {
				return fmt.Errorf("pool '%s' is not empty (contains VM %d)", id, vmid)
			}
		}
		if len(p.Storages) > 0 {
			return fmt.Errorf("pool '%s' is not empty (contains storage '%s')", id, slices.Sorted(maps.Keys(p.Storages))[0])
		}
		delete(d.Pools, id)
		return nil
	})
}
