// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster serves the API of the cluster itself: resources, status, options and resource pools.
package cluster

import (
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pvestatd"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
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
	version := api.Static(api.Row{"version": k.Version.Full, "release": k.Version.Release, "repoid": k.Version.RepoID})
	rh := resourceHandlers{k, store, network, stats}
	ph := poolHandlers{k, store, stats}
	return map[string]api.Handler{
		"GET /version":              version,
		"GET /nodes/{node}/version": version,
		"GET /cluster":              api.Index("name", "resources", "status", "nextid", "options", "tasks", "ha", "firewall", "mapping", "sdn"),
		"GET /cluster/resources":    kernel.Read(k, rh.getResources),
		"GET /cluster/status":       kernel.Read(k, ch.getClusterStatus),
		"GET /cluster/config/nodes": kernel.Read(k, ch.getConfigNodes),
		"GET /cluster/nextid":       kernel.Read(k, ch.getNextID),
		"GET /cluster/options":      kernel.Read(k, ch.getOptions),
		"PUT /cluster/options":      kernel.Change(k, ch.putOptions),
		"GET /cluster/backup":       api.Static([]api.Row{}),
		"GET /cluster/log":          api.Static([]api.Row{}),
		"GET /cluster/replication":  api.Static([]api.Row{}),
		"GET /pools":                ph.getPools,
		"POST /pools":               ph.postPool,
		"PUT /pools":                ph.putPool,
		"DELETE /pools":             ph.deletePool,
		"GET /pools/{poolid}":       ph.getPool,
		"PUT /pools/{poolid}":       ph.putPool,
		"DELETE /pools/{poolid}":    ph.deletePool,
	}
}

func (ch *handlers) getClusterStatus(*api.Request) (any, error) {
	serving := ch.k.ServingHost()
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
	return rows, nil
}

func (ch *handlers) getConfigNodes(*api.Request) (any, error) {
	rows := []api.Row{}
	if ch.k.Name == "" {
		return rows, nil
	}
	for i, h := range ch.k.Hosts {
		rows = append(rows, api.Row{"node": h.Name, "name": h.Name, "nodeid": strconv.Itoa(i + 1), "ring0_addr": h.IP, "quorum_votes": "1"})
	}
	return rows, nil
}

// getNextID returns the lowest free VMID of the configured range, or checks a given one. It reserves nothing.
func (ch *handlers) getNextID(r *api.Request) (any, error) {
	if v, ok := r.Value("vmid"); ok {
		if id, err := strconv.Atoi(v); err == nil && ch.k.Guests[id] != nil {
			return nil, api.BadParam("vmid", "VM %d already exists", id)
		}
		return v, nil
	}
	limits := qm.ParseFields(ch.k.Options["next-id"])
	lower, upper := int(qm.Number(limits["lower"], 100)), int(qm.Number(limits["upper"], 1000000))
	for id := lower; id < upper; id++ {
		if ch.k.Guests[id] == nil {
			return strconv.Itoa(id), nil
		}
	}
	return nil, api.Failf("unable to get any free VMID in range [%d, %d]", lower, upper-1)
}

// getOptions returns datacenter.cfg to auditors, and the tags that the caller can set to all users.
func (ch *handlers) getOptions(r *api.Request) (any, error) {
	all := ch.k.Access.Has(r.Who, "/", "Sys.Audit")
	modify := ch.k.Access.Has(r.Who, "/", "Sys.Modify")
	out := api.Row{"allowed-tags": ch.k.AllowedTags(r, modify)}
	if !all {
		return out, nil
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
	return out, nil
}

func (ch *handlers) putOptions(r *api.Request) error {
	if err := ch.k.CheckWritable("/etc/pve/datacenter.cfg"); err != nil {
		return err
	}
	for key, v := range r.Params.Values {
		if key != "delete" {
			ch.k.Options[key] = v
		}
	}
	api.DeleteListed(r, ch.k.Options)
	return nil
}

// getResources lists all resources that the caller can audit.
func (rh *resourceHandlers) getResources(r *api.Request) (any, error) {
	typ := r.Params.Values["type"]
	want := func(t string) bool { return typ == "" || typ == t }
	viewer := rh.k.Access.Viewer(r.Who)
	pools := rh.k.Access.PoolsOfGuests()
	rows := []any{}
	add := func(row any) { rows = append(rows, row) }
	if typ == "" {
		for _, id := range rh.k.Access.PoolIDs() {
			if viewer.Has("/pool/"+id, "Pool.Audit") {
				add(api.Row{"id": "/pool/" + id, "type": "pool", "pool": id})
			}
		}
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
			add(rh.stats.GuestRow(g, pool))
		}
	}
	if want("node") {
		for _, h := range rh.k.Hosts {
			add(rh.hostResource(h, viewer.Has("/nodes/"+h.Name, "Sys.Audit")))
		}
	}
	if want("storage") {
		rh.addStorages(viewer, add)
	}
	if want("sdn") {
		rh.addZones(viewer, typ, add)
	}
	return rows, nil
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

func (rh *resourceHandlers) addStorages(viewer *access.Viewer, add func(row any)) {
	for _, s := range rh.store.Storages() {
		if !viewer.Has("/storage/"+s.ID, "Datastore.Audit") {
			continue
		}
		for _, h := range rh.k.Hosts {
			if s.IsAvailableOn(h.Name) {
				add(rh.stats.StorageRow(s, h))
			}
		}
	}
}

// addZones adds network zones. Bridges outside of SDN are in the zone "localnetwork". PVE 9.2 has "network" rows
// instead of "sdn" rows, but the filter is still "sdn" and matches none of them.
func (rh *resourceHandlers) addZones(viewer *access.Viewer, typ string, add func(row any)) {
	for _, zone := range append([]string{"localnetwork"}, rh.network.Zones()...) {
		if !viewer.Has("/sdn/zones/"+zone, "SDN.Audit") {
			continue
		}
		for _, h := range rh.k.Hosts {
			if !rh.k.Version.NetworkRows {
				add(api.Row{"id": "sdn/" + h.Name + "/" + zone, "type": "sdn", "sdn": zone, "node": h.Name, "status": "ok"})
			} else if typ == "" {
				add(api.Row{
					"id": "network/" + h.Name + "/zone/" + zone, "type": "network", "network": zone, "network-type": "zone",
					"node": h.Name, "status": "ok",
				})
			}
		}
	}
}
