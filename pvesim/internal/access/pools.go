// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"maps"
	"slices"
)

// AddPool defines a resource pool with its members, replacing one with the same ID.
func (s *Store) AddPool(id, comment string, vms []int, storages []string) {
	p := &Pool{ID: id, Comment: comment, VMs: map[int]bool{}, Storages: map[string]bool{}}
	for _, v := range vms {
		p.VMs[v] = true
	}
	for _, name := range storages {
		p.Storages[name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[id] = p
}

// PoolExists reports whether a resource pool is defined.
func (s *Store) PoolExists(id string) (ok bool) {
	s.View(func(d *Data) { ok = d.Pools[id] != nil })
	return ok
}

// PoolIDs lists the resource pools in order.
func (s *Store) PoolIDs() (ids []string) {
	s.View(func(d *Data) { ids = slices.Sorted(maps.Keys(d.Pools)) })
	return ids
}

// PoolsOfGuests returns the resource pool of each guest that is in one.
func (s *Store) PoolsOfGuests() map[int]string {
	out := map[int]string{}
	s.View(func(d *Data) {
		for id, p := range d.Pools {
			for vmid := range p.VMs {
				out[vmid] = id
			}
		}
	})
	return out
}
