// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster serves the API of the cluster itself: resources, status, options and resource pools.
package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
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
	version := api.Static(api.Row{"version": k.Version.Full, "release": k.Version.Release, "repoid": k.Version.RepoID})
	rh := resourceHandlers{k, store, network, stats}
	ph := poolHandlers{k, store, stats}
	routes := map[string]api.Handler{
		"GET /version":              version,
		"GET /nodes/{node}/version": version,
		"GET /cluster":              api.Index("name", "resources", "status", "nextid", "options", "tasks", "ha", "firewall", "mapping", "metrics", "sdn"),
		"GET /cluster/resources":    kernel.Read(k, rh.getResources),
		"GET /cluster/status":       kernel.Read(k, ch.getClusterStatus),
		"GET /cluster/config/nodes": kernel.Read(k, ch.getConfigNodes),
		"GET /cluster/nextid":       kernel.Read(k, ch.getNextID),
		"GET /cluster/options":      kernel.Read(k, ch.getOptions),
		"PUT /cluster/options":      kernel.Change(k, ch.putOptions),
		"GET /cluster/log":          api.Static([]api.Row{}),
		"GET /pools":                ph.getPools,
		"POST /pools":               ph.postPool,
		"PUT /pools":                ph.putPool,
		"DELETE /pools":             ph.deletePool,
		"GET /pools/{poolid}":       ph.getPool,
		"PUT /pools/{poolid}":       ph.putPool,
		"DELETE /pools/{poolid}":    ph.deletePool,
	}
	jh := jobHandlers{k}
	maps.Copy(routes, jh.routes())
	return routes
}

func (ch *handlers) getClusterStatus(r *api.Request) (any, error) {
	serving := ch.k.ServingHost(r)
	rows := []api.Row{}
	if ch.k.Name != "" {
		rows = append(rows, api.Row{
			"type": "cluster", "id": "cluster", "name": ch.k.Name, "nodes": len(ch.k.Hosts), "quorate": ch.k.ReportedQuorum(serving), "version": len(ch.k.Hosts),
		})
	}
	for i, h := range ch.k.Hosts {
		out := api.Row{
			"type": "node", "id": "node/" + h.Name, "name": h.Name, "nodeid": i + 1, "local": api.BoolInt(h == serving),
			"online": api.BoolInt(kernel.Sees(serving, h)), "level": "",
		}
		if ch.k.Name == "" {
			out["nodeid"] = 0
		}
		if kernel.Sees(serving, h) {
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
		rows = append(rows, api.Row{"node": h.Name, "name": h.Name, "nodeid": strconv.Itoa(i + 1), "ring0_addr": h.IP, "quorum_votes": strconv.Itoa(h.Votes)})
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
	out["mac_prefix"], out["description"] = "BC:24:11", ""
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
	if err := ch.k.CheckWritable(ch.k.ServingHost(r), "/etc/pve/datacenter.cfg"); err != nil {
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
	viewer, serving := rh.k.Access.Viewer(r.Who), rh.k.ServingHost(r)
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
			if !rh.k.IsListed(serving, g) || !viewer.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				continue
			}
			pool := pools[g.VMID]
			if pool != "" && !viewer.Has("/pool/"+pool, "Pool.Audit") {
				pool = ""
			}
			add(rh.stats.GuestRow(serving, g, pool))
		}
	}
	if want("node") {
		for _, h := range rh.k.Hosts {
			add(rh.hostResource(serving, h, viewer.Has("/nodes/"+h.Name, "Sys.Audit")))
		}
	}
	if want("storage") {
		rh.addStorages(serving, viewer, add)
	}
	if want("sdn") {
		rh.addZones(viewer, typ, add)
	}
	return rows, nil
}

// hostResource returns the row of a host.
func (rh *resourceHandlers) hostResource(serving, h *kernel.Host, figures bool) api.Row {
	out := rh.stats.HostRow(serving, h, figures)
	if kernel.Sees(serving, h) {
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

func (rh *resourceHandlers) addStorages(serving *kernel.Host, viewer *access.Viewer, add func(row any)) {
	for _, s := range rh.store.Storages() {
		if !viewer.Has("/storage/"+s.ID, "Datastore.Audit") {
			continue
		}
		for _, h := range rh.k.Hosts {
			if s.IsAvailableOn(h.Name) {
				add(rh.stats.StorageRow(serving, s, h))
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

// getPools lists the resource pools that the caller can audit. With poolid, it returns that pool and its members to all
// callers.
func (ph *poolHandlers) getPools(_ context.Context, r *api.Request) (api.Response, error) {
	if id, ok := r.Value("poolid"); ok {
		out, err := ph.poolDetails(r, id)
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
	out, err := ph.poolDetails(r, r.Params.Values["poolid"])
	return api.Response{Data: out}, err
}

func (ph *poolHandlers) poolDetails(r *api.Request, id string) (api.Row, error) {
	var pool *access.Pool
	ph.k.Access.View(func(d *access.Data) {
		if p := d.Pools[id]; p != nil {
			pool = &access.Pool{Comment: p.Comment, VMs: maps.Clone(p.VMs), Storages: maps.Clone(p.Storages)}
		}
	})
	if pool == nil {
		return nil, api.Failf("pool '%s' does not exist", id)
	}
	ph.k.Mu.Lock()
	defer ph.k.Mu.Unlock()
	serving, members := ph.k.ServingHost(r), []any{}
	for _, g := range ph.k.SortedGuests() {
		if pool.VMs[g.VMID] {
			members = append(members, ph.stats.GuestRow(serving, g, ""))
		}
	}
	for _, s := range ph.store.Storages() {
		if !pool.Storages[s.ID] {
			continue
		}
		for _, h := range ph.k.Hosts {
			if s.IsAvailableOn(h.Name) {
				members = append(members, ph.stats.StorageRow(serving, s, h))
			}
		}
	}
	out := api.Row{"members": members, "poolid": id}
	api.SetNonEmpty(out, "comment", pool.Comment)
	return out, nil
}

func (ph *poolHandlers) postPool(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["poolid"]
	return ph.k.ChangeUserConfig(ctx, r, "create pool", func(d *access.Data) error {
		if d.Pools[id] != nil {
			return fmt.Errorf("pool '%s' already exists", id)
		}
		d.Pools[id] = &access.Pool{ID: id, Comment: r.Params.Values["comment"], VMs: map[int]bool{}, Storages: map[string]bool{}}
		return nil
	})
}

func (ph *poolHandlers) putPool(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["poolid"]
	for _, kind := range []string{"vms", "storage"} {
		for _, member := range schema.SplitList(r.Params.Values[kind]) {
			if err := ph.k.CheckPermModify(r, "/"+kind+"/"+member); err != nil {
				return api.Response{}, err
			}
		}
	}
	return ph.k.ChangeUserConfig(ctx, r, "update pools", func(d *access.Data) error {
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
	return ph.k.ChangeUserConfig(ctx, r, "delete pool", func(d *access.Data) error {
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
