// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func (e *Engine) getVersion(context.Context, *Request) (Response, error) {
	return Response{Data: row{"version": e.Version.Full, "release": e.Version.Release, "repoid": e.Version.RepoID}}, nil
}

// getResources is the cheap view of everything. Rows that the caller may not see are left out silently.
func (e *Engine) getResources(_ context.Context, r *Request) (Response, error) {
	typ := r.Params.Values["type"]
	want := func(t string) bool { return typ == "" || typ == t }
	may := e.Access.Viewer(r.Who)
	pools := e.Access.PoolsOfGuests()
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []any{}
	add := func(more []row) {
		for _, r := range more {
			rows = append(rows, r)
		}
	}
	if typ == "" {
		add(e.poolRows(may.Has))
	}
	if want("vm") {
		for _, g := range e.sortedGuests() {
			if !may.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				continue
			}
			pool := pools[g.VMID]
			if pool != "" && !may.Has("/pool/"+pool, "Pool.Audit") {
				pool = ""
			}
			rows = append(rows, e.guestRow(g, pool))
		}
	}
	if want("node") {
		for _, h := range e.hosts {
			rows = append(rows, e.hostResource(h, may.Has("/nodes/"+h.Name, "Sys.Audit")))
		}
	}
	if want("storage") {
		add(e.storageRows(may.Has))
	}
	if want("sdn") {
		add(e.zoneRows(may.Has, typ))
	}
	return Response{Data: rows}, nil
}

// hostResource is a host in /cluster/resources.
func (e *Engine) hostResource(h *Host, figures bool) row {
	out := e.hostRow(h, figures)
	if h.Online {
		out["cgroup-mode"] = 2
	}
	if e.Version.HostRows && h.Maintenance {
		out["hastate"] = "maintenance"
	}
	if e.Version.HostRows && h.Arch != "" {
		out["host-arch"] = h.Arch
	}
	return out
}

type mayFunc func(path, privilege string) bool

func (e *Engine) poolRows(may mayFunc) []row {
	var rows []row
	for _, id := range e.poolIDs() {
		if may("/pool/"+id, "Pool.Audit") {
			rows = append(rows, row{"id": "/pool/" + id, "type": "pool", "pool": id})
		}
	}
	return rows
}

func (e *Engine) storageRows(may mayFunc) []row {
	var rows []row
	for _, s := range e.allStorages() {
		if !may("/storage/"+s.ID, "Datastore.Audit") {
			continue
		}
		for _, h := range e.hosts {
			if s.availableOn(h.Name) {
				rows = append(rows, e.storageRow(s, h))
			}
		}
	}
	return rows
}

// zoneRows lists network zones; bridges outside of SDN count as the zone "localnetwork". The 9.2 rows are called
// "network", yet the filter of the same purpose is still called "sdn" and then shows nothing.
func (e *Engine) zoneRows(may mayFunc, typ string) []row {
	var rows []row
	names := []string{"localnetwork"}
	names = append(names, e.zones.ids()...)
	for _, zone := range names {
		if !may("/sdn/zones/"+zone, "SDN.Audit") {
			continue
		}
		for _, h := range e.hosts {
			if !e.Version.NetworkRows {
				rows = append(rows, row{"id": "sdn/" + h.Name + "/" + zone, "type": "sdn", "sdn": zone, "node": h.Name, "status": "ok"})
			} else if typ == "" {
				rows = append(rows, row{
					"id": "network/" + h.Name + "/zone/" + zone, "type": "network", "network": zone, "network-type": "zone",
					"node": h.Name, "status": "ok",
				})
			}
		}
	}
	return rows
}

func (e *Engine) getClusterStatus(context.Context, *Request) (Response, error) {
	serving := e.Serving()
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	if e.name != "" {
		rows = append(rows, row{
			"type": "cluster", "id": "cluster", "name": e.name, "nodes": len(e.hosts), "quorate": boolInt(!e.noQuorum), "version": len(e.hosts),
		})
	}
	for i, h := range e.hosts {
		out := row{
			"type": "node", "id": "node/" + h.Name, "name": h.Name, "nodeid": i + 1, "local": boolInt(h == serving),
			"online": boolInt(h.Online), "level": "",
		}
		if e.name == "" {
			out["nodeid"] = 0
		}
		if h.Online {
			out["ip"] = h.IP
		}
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

func (e *Engine) getConfigNodes(context.Context, *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	if e.name == "" {
		return Response{Data: rows}, nil
	}
	for i, h := range e.hosts {
		rows = append(rows, row{"node": h.Name, "name": h.Name, "nodeid": strconv.Itoa(i + 1), "ring0_addr": h.IP, "quorum_votes": "1"})
	}
	return Response{Data: rows}, nil
}

// getNextID answers the lowest free VMID of the configured range, or checks a given one. It reserves nothing.
func (e *Engine) getNextID(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if v, ok := r.value("vmid"); ok {
		if id, err := strconv.Atoi(v); err == nil && e.guests[id] != nil {
			return Response{}, badParam("vmid", "VM %d already exists", id)
		}
		return Response{Data: v}, nil
	}
	limits := qm.ParseFields(e.options["next-id"])
	lower, upper := int(qm.Number(limits["lower"], 100)), int(qm.Number(limits["upper"], 1000000))
	for id := lower; id < upper; id++ {
		if e.guests[id] == nil {
			return Response{Data: strconv.Itoa(id)}, nil
		}
	}
	return Response{}, failf("unable to get any free VMID in range [%d, %d]", lower, upper-1)
}

// getOptions shows datacenter.cfg to auditors, and the tags that the caller may use to everybody.
func (e *Engine) getOptions(_ context.Context, r *Request) (Response, error) {
	all := e.Access.Has(r.Who, "/", "Sys.Audit")
	modify := e.Access.Has(r.Who, "/", "Sys.Modify")
	e.mu.Lock()
	defer e.mu.Unlock()
	out := row{"allowed-tags": e.allowedTags(r, modify)}
	if !all {
		return Response{Data: out}, nil
	}
	out["keyboard"], out["mac_prefix"], out["description"] = "en-us", "BC:24:11", ""
	for key, v := range e.options {
		switch key {
		case "registered-tags":
			out[key] = qm.TagList(v)
		case "user-tag-access", "next-id", "tag-style", "migration", "bwlimit", "ha", "crs", "notify", "u2f", "webauthn":
			out[key] = anyMap(qm.ParseFields(v))
		default:
			out[key] = v
		}
	}
	return Response{Data: out}, nil
}

func anyMap(m map[string]string) row {
	out := row{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// allowedTags are those that "user-tag-access" lets an ordinary user set.
func (e *Engine) allowedTags(r *Request, modify bool) []string {
	tags := map[string]bool{}
	access := qm.ParseFields(e.options["user-tag-access"])
	mode := cmp.Or(access["user-allow"], "free")
	if mode == "list" || mode == "existing" {
		for _, t := range strings.FieldsFunc(access["user-allow-list"], func(c rune) bool { return c == ';' }) {
			tags[t] = true
		}
	}
	if mode == "free" || mode == "existing" {
		for _, g := range e.guests {
			if e.Access.Has(r.Who, "/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				for _, t := range qm.TagList(g.Config.Options["tags"]) {
					tags[t] = true
				}
			}
		}
	}
	for _, t := range qm.TagList(e.options["registered-tags"]) {
		if modify {
			tags[t] = true
		} else {
			delete(tags, t)
		}
	}
	out := slices.Sorted(maps.Keys(tags))
	if out == nil {
		out = []string{}
	}
	return out
}

func (e *Engine) putOptions(_ context.Context, r *Request) (Response, error) {
	if err := e.configWritable("/etc/pve/datacenter.cfg"); err != nil {
		return Response{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, v := range r.Params.Values {
		if key != "delete" {
			e.options[key] = v
		}
	}
	for _, key := range schema.SplitList(r.Params.Values["delete"]) {
		delete(e.options, key)
	}
	return Response{}, nil
}

// configWritable is the state of /etc/pve: read-only without quorum.
func (e *Engine) configWritable(file string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.writable(file)
}

// writable is configWritable for callers that hold the mutex.
func (e *Engine) writable(file string) error {
	if e.noQuorum {
		return failf("unable to open file '%s.tmp.%d' - Permission denied", file, e.nextPID)
	}
	return nil
}

// configFile is the path of a VM's config.
func configFile(host string, vmid int) string {
	return fmt.Sprintf("/etc/pve/nodes/%s/qemu-server/%d.conf", host, vmid)
}

func (e *Engine) getHosts(_ context.Context, r *Request) (Response, error) {
	may := e.Access.Viewer(r.Who)
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	for _, h := range e.hosts {
		out := e.hostRow(h, may.Has("/nodes/"+h.Name, "Sys.Audit"))
		out["ssl_fingerprint"] = nil
		if h.Online {
			out["ssl_fingerprint"] = fingerprint(h.Name)
		}
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

// emptyList answers for objects that the cluster has none of.
func emptyList(context.Context, *Request) (Response, error) {
	return Response{Data: []row{}}, nil
}
