// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// getResources lists all resources that the caller can audit.
func (rh *resourceHandlers) getResources(_ context.Context, r *api.Request) (api.Response, error) {
	typ := r.Params.Values["type"]
	want := func(t string) bool { return typ == "" || typ == t }
	viewer := rh.k.Access.Viewer(r.Who)
	pools := rh.k.Access.PoolsOfGuests()
	rh.k.Mu.Lock()
	defer rh.k.Mu.Unlock()
	rows := []any{}
	add := func(more []api.Row) {
		for _, r := range more {
			rows = append(rows, r)
		}
	}
	if typ == "" {
		add(rh.poolRows(viewer.Has))
	}
	if want("vm") {
		for _, g := range rh.k.SortedGuests() {
			if !viewer.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				continue
			}
			pool := pools[g.VMID]
			if pool != "" && !viewer.Has("/pool/"+pool, "Pool.Audit") {
				pool = ""
			}
			rows = append(rows, rh.stats.GuestRow(g, pool))
		}
	}
	if want("node") {
		for _, h := range rh.k.Hosts {
			rows = append(rows, rh.hostResource(h, viewer.Has("/nodes/"+h.Name, "Sys.Audit")))
		}
	}
	if want("storage") {
		add(rh.storageRows(viewer.Has))
	}
	if want("sdn") {
		add(rh.zoneRows(viewer.Has, typ))
	}
	return api.Response{Data: rows}, nil
}

// hostResource returns the row of a host.
func (rh *resourceHandlers) hostResource(h *kernel.Host, figures bool) api.Row {
	out := rh.stats.HostRow(h, figures)
	if h.Online {
		out["cgroup-mode"] = 2
	}
	if rh.k.Version.HostRows && h.Maintenance {
		out["hastate"] = "maintenance"
	}
	if rh.k.Version.HostRows && h.Arch != "" {
		out["host-arch"] = h.Arch
	}
	return out
}

// hasFunc reports whether the caller has a privilege on a path.
type hasFunc func(path, privilege string) bool

func (rh *resourceHandlers) poolRows(has hasFunc) []api.Row {
	var rows []api.Row
	for _, id := range rh.k.Access.PoolIDs() {
		if has("/pool/"+id, "Pool.Audit") {
			rows = append(rows, api.Row{"id": "/pool/" + id, "type": "pool", "pool": id})
		}
	}
	return rows
}

func (rh *resourceHandlers) storageRows(has hasFunc) []api.Row {
	var rows []api.Row
	for _, s := range rh.store.Storages() {
		if !has("/storage/"+s.ID, "Datastore.Audit") {
			continue
		}
		for _, h := range rh.k.Hosts {
			if s.IsAvailableOn(h.Name) {
				rows = append(rows, rh.stats.StorageRow(s, h))
			}
		}
	}
	return rows
}

// zoneRows lists network zones. Bridges outside of SDN are in the zone "localnetwork". PVE 9.2 has "network" rows
// instead of "sdn" rows, but the filter is still "sdn" and matches none of them.
func (rh *resourceHandlers) zoneRows(has hasFunc, typ string) []api.Row {
	var rows []api.Row
	names := []string{"localnetwork"}
	names = append(names, rh.network.Zones()...)
	for _, zone := range names {
		if !has("/sdn/zones/"+zone, "SDN.Audit") {
			continue
		}
		for _, h := range rh.k.Hosts {
			if !rh.k.Version.NetworkRows {
				rows = append(rows, api.Row{"id": "sdn/" + h.Name + "/" + zone, "type": "sdn", "sdn": zone, "node": h.Name, "status": "ok"})
			} else if typ == "" {
				rows = append(rows, api.Row{
					"id": "network/" + h.Name + "/zone/" + zone, "type": "network", "network": zone, "network-type": "zone",
					"node": h.Name, "status": "ok",
				})
			}
		}
	}
	return rows
}
