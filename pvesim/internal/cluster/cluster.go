// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster serves the API of the cluster itself: resources, status, options and resource pools.
package cluster

import (
	"context"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pvestatd"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Handlers by kind of object.
type (
	handlers         struct{ k *kernel.Kernel }
	resourceHandlers struct {
		k       *kernel.Kernel
		store   *storage.Store
		network *sdn.Network
		stats   *pvestatd.Daemon
	}
	poolHandlers struct {
		k     *kernel.Kernel
		store *storage.Store
		stats *pvestatd.Daemon
	}
)

// Routes returns the handlers of the cluster by method.
func Routes(k *kernel.Kernel, store *storage.Store, network *sdn.Network, stats *pvestatd.Daemon) map[string]api.Handler {
	ch := handlers{k}
	rh := resourceHandlers{k, store, network, stats}
	ph := poolHandlers{k, store, stats}
	return map[string]api.Handler{
		"GET /version":              ch.getVersion,
		"GET /nodes/{node}/version": ch.getVersion,
		"GET /cluster":              api.Index("name", "resources", "status", "nextid", "options", "tasks", "ha", "firewall", "mapping", "sdn"),
		"GET /cluster/resources":    rh.getResources,
		"GET /cluster/status":       ch.getClusterStatus,
		"GET /cluster/config/nodes": ch.getConfigNodes,
		"GET /cluster/nextid":       ch.getNextID,
		"GET /cluster/options":      ch.getOptions,
		"PUT /cluster/options":      ch.putOptions,
		"GET /cluster/backup":       api.EmptyList,
		"GET /cluster/log":          api.EmptyList,
		"GET /cluster/replication":  api.EmptyList,
		"GET /pools":                ph.getPools,
		"POST /pools":               ph.postPool,
		"PUT /pools":                ph.putPool,
		"DELETE /pools":             ph.deletePool,
		"GET /pools/{poolid}":       ph.getPool,
		"PUT /pools/{poolid}":       ph.putPool,
		"DELETE /pools/{poolid}":    ph.deletePool,
	}
}

func (ch *handlers) getVersion(context.Context, *api.Request) (api.Response, error) {
	return api.Response{Data: api.Row{"version": ch.k.Version.Full, "release": ch.k.Version.Release, "repoid": ch.k.Version.RepoID}}, nil
}

func (ch *handlers) getClusterStatus(context.Context, *api.Request) (api.Response, error) {
	serving := ch.k.ServingHost()
	ch.k.Mu.Lock()
	defer ch.k.Mu.Unlock()
	rows := []api.Row{}
	if ch.k.Name != "" {
		rows = append(rows, api.Row{
			"type": "cluster", "id": "cluster", "name": ch.k.Name, "nodes": len(ch.k.Hosts), "quorate": api.BoolInt(!ch.k.NoQuorum), "version": len(ch.k.Hosts),
		})
	}
	for i, h := range ch.k.Hosts {
		out := api.Row{
			"type": "node", "id": "node/" + h.Name, "name": h.Name, "nodeid": i + 1, "local": api.BoolInt(h == serving),
			"online": api.BoolInt(h.Online), "level": "",
		}
		if ch.k.Name == "" {
			out["nodeid"] = 0
		}
		if h.Online {
			out["ip"] = h.IP
		}
		rows = append(rows, out)
	}
	return api.Response{Data: rows}, nil
}

func (ch *handlers) getConfigNodes(context.Context, *api.Request) (api.Response, error) {
	ch.k.Mu.Lock()
	defer ch.k.Mu.Unlock()
	rows := []api.Row{}
	if ch.k.Name == "" {
		return api.Response{Data: rows}, nil
	}
	for i, h := range ch.k.Hosts {
		rows = append(rows, api.Row{"node": h.Name, "name": h.Name, "nodeid": strconv.Itoa(i + 1), "ring0_addr": h.IP, "quorum_votes": "1"})
	}
	return api.Response{Data: rows}, nil
}

// getNextID returns the lowest free VMID of the configured range, or checks a given one. It reserves nothing.
func (ch *handlers) getNextID(_ context.Context, r *api.Request) (api.Response, error) {
	ch.k.Mu.Lock()
	defer ch.k.Mu.Unlock()
	if v, ok := r.Value("vmid"); ok {
		if id, err := strconv.Atoi(v); err == nil && ch.k.Guests[id] != nil {
			return api.Response{}, api.BadParam("vmid", "VM %d already exists", id)
		}
		return api.Response{Data: v}, nil
	}
	limits := qm.ParseFields(ch.k.Options["next-id"])
	lower, upper := int(qm.Number(limits["lower"], 100)), int(qm.Number(limits["upper"], 1000000))
	for id := lower; id < upper; id++ {
		if ch.k.Guests[id] == nil {
			return api.Response{Data: strconv.Itoa(id)}, nil
		}
	}
	return api.Response{}, api.Failf("unable to get any free VMID in range [%d, %d]", lower, upper-1)
}

// getOptions returns datacenter.cfg to auditors, and the tags that the caller can set to all users.
func (ch *handlers) getOptions(_ context.Context, r *api.Request) (api.Response, error) {
	all := ch.k.Access.Has(r.Who, "/", "Sys.Audit")
	modify := ch.k.Access.Has(r.Who, "/", "Sys.Modify")
	ch.k.Mu.Lock()
	defer ch.k.Mu.Unlock()
	out := api.Row{"allowed-tags": ch.k.AllowedTags(r, modify)}
	if !all {
		return api.Response{Data: out}, nil
	}
	out["keyboard"], out["mac_prefix"], out["description"] = "en-us", "BC:24:11", ""
	for key, v := range ch.k.Options {
		switch key {
		case "registered-tags":
			out[key] = qm.TagList(v)
		case "user-tag-access", "next-id", "tag-style", "migration", "bwlimit", "ha", "crs", "notify", "u2f", "webauthn":
			out[key] = api.NewRow(qm.ParseFields(v))
		default:
			out[key] = v
		}
	}
	return api.Response{Data: out}, nil
}

func (ch *handlers) putOptions(_ context.Context, r *api.Request) (api.Response, error) {
	if err := ch.k.CheckConfigWritable("/etc/pve/datacenter.cfg"); err != nil {
		return api.Response{}, err
	}
	ch.k.Mu.Lock()
	defer ch.k.Mu.Unlock()
	for key, v := range r.Params.Values {
		if key != "delete" {
			ch.k.Options[key] = v
		}
	}
	for _, key := range schema.SplitList(r.Params.Values["delete"]) {
		delete(ch.k.Options, key)
	}
	return api.Response{}, nil
}

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
