// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// getResources is the cheap view of everything. Rows that the caller may not see are left out silently.
func (rh *resourceHandlers) getResources(_ context.Context, r *api.Request) (api.Response, error) {
	typ := r.Params.Values["type"]
	want := func(t string) bool { return typ == "" || typ == t }
	may := rh.k.Access.Viewer(r.Who)
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
		add(rh.poolRows(may.Has))
	}
	if want("vm") {
		for _, g := range rh.k.SortedGuests() {
			if !may.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				continue
			}
			pool := pools[g.VMID]
			if pool != "" && !may.Has("/pool/"+pool, "Pool.Audit") {
				pool = ""
			}
			rows = append(rows, rh.stats.GuestRow(g, pool))
		}
	}
	if want("node") {
		for _, h := range rh.k.Hosts {
			rows = append(rows, rh.hostResource(h, may.Has("/nodes/"+h.Name, "Sys.Audit")))
		}
	}
	if want("storage") {
		add(rh.storageRows(may.Has))
	}
	if want("sdn") {
		add(rh.zoneRows(may.Has, typ))
	}
	return api.Response{Data: rows}, nil
}

// hostResource is a host in /cluster/resources.
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

type mayFunc func(path, privilege string) bool

func (rh *resourceHandlers) poolRows(may mayFunc) []api.Row {
	var rows []api.Row
	for _, id := range rh.k.Access.PoolIDs() {
		if may("/pool/"+id, "Pool.Audit") {
			rows = append(rows, api.Row{"id": "/pool/" + id, "type": "pool", "pool": id})
		}
	}
	return rows
}

func (rh *resourceHandlers) storageRows(may mayFunc) []api.Row {
	var rows []api.Row
	for _, s := range rh.store.Storages() {
		if !may("/storage/"+s.ID, "Datastore.Audit") {
			continue
		}
		for _, h := range rh.k.Hosts {
			if s.AvailableOn(h.Name) {
				rows = append(rows, rh.stats.StorageRow(s, h))
			}
		}
	}
	return rows
}

// zoneRows lists network zones; bridges outside of SDN count as the zone "localnetwork". The 9.2 rows are called
// "network", yet the filter of the same purpose is still called "sdn" and then shows nothing.
func (rh *resourceHandlers) zoneRows(may mayFunc, typ string) []api.Row {
	var rows []api.Row
	names := []string{"localnetwork"}
	names = append(names, rh.network.Zones()...)
	for _, zone := range names {
		if !may("/sdn/zones/"+zone, "SDN.Audit") {
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
