// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func (e *Engine) poolExists(id string) (ok bool) {
	e.Access.View(func(d *access.Data) { ok = d.Pools[id] != nil })
	return ok
}

func (e *Engine) poolIDs() (ids []string) {
	e.Access.View(func(d *access.Data) { ids = slices.Sorted(maps.Keys(d.Pools)) })
	return ids
}

// AddPool defines a pool with its members.
func (e *Engine) AddPool(id, comment string, vms []int, storages []string) {
	p := &access.Pool{ID: id, Comment: comment, VMs: map[int]bool{}, Storages: map[string]bool{}}
	for _, v := range vms {
		p.VMs[v] = true
	}
	for _, s := range storages {
		p.Storages[s] = true
	}
	_ = e.Access.Update(func(d *access.Data) error { d.Pools[id] = p; return nil })
}

// addToPool is the last step of create and clone; it needs the cluster-wide lock of user.cfg.
func (e *Engine) addToPool(ctx context.Context, vmid int, pool string) error {
	release, err := e.Locks.Cluster(ctx, "file-user_cfg", 10*time.Second)
	if err != nil {
		return failf("can't add VM %d to pool '%s': %v", vmid, pool, err)
	}
	defer release()
	return e.Access.Update(func(d *access.Data) error {
		if d.Pools[pool] == nil {
			return failf("can't add VM %d to pool '%s': pool '%s' does not exist", vmid, pool, pool)
		}
		d.Pools[pool].VMs[vmid] = true
		return nil
	})
}

// getPools lists the pools that the caller may audit. With poolid it answers that pool's members, to anybody.
func (e *Engine) getPools(_ context.Context, r *Request) (Response, error) {
	if id, ok := r.value("poolid"); ok {
		out, err := e.poolDetails(id)
		if err != nil {
			return Response{}, err
		}
		return Response{Data: []row{out}}, nil
	}
	rows := []row{}
	e.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Pools)) {
			out := row{"poolid": id}
			if c := d.Pools[id].Comment; c != "" {
				out["comment"] = c
			}
			rows = append(rows, out)
		}
	})
	visible := []row{}
	for _, out := range rows {
		if e.Access.Has(r.Who, fmt.Sprintf("/pool/%v", out["poolid"]), "Pool.Audit") {
			visible = append(visible, out)
		}
	}
	return Response{Data: visible}, nil
}

func (e *Engine) getPool(_ context.Context, r *Request) (Response, error) {
	out, err := e.poolDetails(r.Params.Values["poolid"])
	return Response{Data: out}, err
}

func (e *Engine) poolDetails(id string) (row, error) {
	var pool *access.Pool
	var vms map[int]bool
	e.Access.View(func(d *access.Data) {
		if p := d.Pools[id]; p != nil {
			copied := *p
			pool = &copied
			vms = map[int]bool{}
			for v := range p.VMs {
				vms[v] = true
			}
		}
	})
	if pool == nil {
		return nil, failf("no such pool '%s'", id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	members := []any{}
	for _, g := range e.sortedGuests() {
		if vms[g.VMID] {
			members = append(members, e.guestRow(g, ""))
		}
	}
	for _, s := range e.allStorages() {
		if !pool.Storages[s.ID] {
			continue
		}
		for _, h := range e.hosts {
			if s.availableOn(h.Name) {
				members = append(members, e.storageRow(s, h))
			}
		}
	}
	out := row{"members": members, "poolid": id}
	if pool.Comment != "" {
		out["comment"] = pool.Comment
	}
	return out, nil
}

func (e *Engine) postPool(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["poolid"]
	return e.userConfig(ctx, "create pool", func(d *access.Data) error {
		if d.Pools[id] != nil {
			return fmt.Errorf("pool '%s' already exists", id)
		}
		d.Pools[id] = &access.Pool{ID: id, Comment: r.Params.Values["comment"], VMs: map[int]bool{}, Storages: map[string]bool{}}
		return nil
	})
}

func (e *Engine) putPool(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["poolid"]
	var members []string
	for _, v := range schema.SplitList(r.Params.Values["vms"]) {
		members = append(members, "/vms/"+v)
	}
	for _, s := range schema.SplitList(r.Params.Values["storage"]) {
		members = append(members, "/storage/"+s)
	}
	for _, path := range members {
		if err := e.checkPermModify(r, path); err != nil {
			return Response{}, err
		}
	}
	return e.userConfig(ctx, "update pools", func(d *access.Data) error {
		p := d.Pools[id]
		if p == nil {
			return fmt.Errorf("pool '%s' does not exist", id)
		}
		if c, ok := r.value("comment"); ok {
			p.Comment = c
		}
		if err := changePoolVMs(d, p, r); err != nil {
			return err
		}
		for _, s := range schema.SplitList(r.Params.Values["storage"]) {
			if r.on("delete") {
				delete(p.Storages, s)
			} else {
				p.Storages[s] = true
			}
		}
		return nil
	})
}

func changePoolVMs(d *access.Data, p *access.Pool, r *Request) error {
	for _, text := range schema.SplitList(r.Params.Values["vms"]) {
		vmid, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		old := d.PoolOf(vmid)
		switch {
		case r.on("delete"):
			if !p.VMs[vmid] {
				return fmt.Errorf("VM %d is not a pool member", vmid)
			}
			delete(p.VMs, vmid)
			continue
		case old == p.ID:
			return fmt.Errorf("VM %d is already a pool member", vmid)
		case old != "" && !r.on("allow-move"):
			return fmt.Errorf("VM %d belongs already to pool '%s' and 'allow-move' is not set", vmid, old)
		case old != "":
			delete(d.Pools[old].VMs, vmid)
		}
		p.VMs[vmid] = true
	}
	return nil
}

func (e *Engine) deletePool(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["poolid"]
	exists := func(vmid int) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.guests[vmid] != nil
	}
	return e.userConfig(ctx, "delete pool", func(d *access.Data) error {
		p := d.Pools[id]
		if p == nil {
			return fmt.Errorf("pool '%s' does not exist", id)
		}
		for vmid := range p.VMs {
			if exists(vmid) {
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
