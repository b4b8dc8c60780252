// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func (e *Engine) haRow(sid string) row {
	out := anyMap(e.ha[sid])
	out["sid"], out["digest"] = sid, e.haDigest()
	out["type"], _, _ = strings.Cut(sid, ":")
	return out
}

func (e *Engine) haDigest() string {
	var b strings.Builder
	for _, sid := range slices.Sorted(maps.Keys(e.ha)) {
		fmt.Fprintf(&b, "%s %v\n", sid, e.ha[sid])
	}
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// sid completes the short form "100" of a resource id.
func sid(r *Request) string {
	v := r.Params.Values["sid"]
	if !strings.Contains(v, ":") {
		return "vm:" + v
	}
	return v
}

func (e *Engine) getHAResource(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ha[sid(r)] == nil {
		return Response{}, failf("no such resource '%s'", sid(r))
	}
	return Response{Data: e.haRow(sid(r))}, nil
}

func (e *Engine) postHAResource(_ context.Context, r *Request) (Response, error) {
	sid := sid(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ha[sid] != nil {
		return Response{}, failf("resource ID '%s' already defined", sid)
	}
	var vmid int
	if _, err := fmt.Sscanf(sid, "vm:%d", &vmid); err == nil && e.guests[vmid] == nil {
		return Response{}, failf("unable to find VM %d", vmid)
	}
	e.ha[sid] = haFields(r, map[string]string{"state": haStarted})
	e.haFollow(vmid)
	return Response{}, nil
}

func haFields(r *Request, into map[string]string) map[string]string {
	for k, v := range r.Params.Values {
		if k != "sid" && k != "type" && k != "digest" && k != "delete" {
			into[k] = v
		}
	}
	return into
}

func (e *Engine) putHAResource(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	res := e.ha[sid(r)]
	if res == nil {
		return Response{}, failf("no such resource '%s'", sid(r))
	}
	haFields(r, res)
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(res, k)
	}
	var vmid int
	if _, err := fmt.Sscanf(sid(r), "vm:%d", &vmid); err == nil {
		e.haFollow(vmid)
	}
	return Response{}, nil
}

func (e *Engine) deleteHAResource(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ha[sid(r)] == nil {
		return Response{}, failf("cannot delete service '%s', not HA managed!", sid(r))
	}
	delete(e.ha, sid(r))
	return Response{}, nil
}

// haGroup serves a method of the groups where they still exist; 9.x has migrated them to rules.
func (e *Engine) haGroup(verb string, serve Handler) Handler {
	if !e.Version.HAGroupsMigrated {
		return serve
	}
	return func(context.Context, *Request) (Response, error) {
		return Response{}, failf("cannot %s: ha groups have been migrated to rules", verb)
	}
}

func (e *Engine) haHandlers() map[string]Handler {
	const one = " /cluster/ha/groups/{group}"
	out := e.haRules.handlers("/cluster/ha/rules")
	maps.Copy(out, map[string]Handler{
		"GET /cluster/ha":         index("name", "status", "resources", "groups", "rules"),
		"GET /cluster/ha/groups":  e.haGroup("index groups", e.haGroups.list),
		"POST /cluster/ha/groups": e.haGroup("create group", e.haGroups.post),
		"GET" + one:               e.haGroup("read group", e.haGroups.get),
		"PUT" + one:               e.haGroup("update group", e.haGroups.put),
		"DELETE" + one:            e.haGroup("delete group", e.haGroups.remove),
	})
	return out
}

func (e *Engine) getHAStatus(context.Context, *Request) (Response, error) {
	serving := e.Serving()
	e.mu.Lock()
	defer e.mu.Unlock()
	text := "OK"
	if e.noQuorum {
		text = "No quorum on node '" + serving.Name + "'!"
	}
	rows := []row{{"id": "quorum", "type": "quorum", "node": serving.Name, "status": text, "quorate": boolInt(!e.noQuorum)}}
	for _, sid := range slices.Sorted(maps.Keys(e.ha)) {
		rows = append(rows, row{"id": "service:" + sid, "type": "service", "sid": sid, "state": e.ha[sid]["state"], "status": e.ha[sid]["state"]})
	}
	return Response{Data: rows}, nil
}

// getHAManagerStatus is the HA manager's own view: the state of each host in it, and what its local manager reports.
func (e *Engine) getHAManagerStatus(context.Context, *Request) (Response, error) {
	serving := e.Serving()
	e.mu.Lock()
	defer e.mu.Unlock()
	states, local := row{}, row{}
	for _, h := range e.hosts {
		state, mode := "online", "active"
		switch {
		case !h.Online:
			state = "unknown"
		case h.Maintenance:
			state, mode = "maintenance", "maintenance"
		}
		states[h.Name] = state
		local[h.Name] = row{"mode": mode, "results": row{}, "state": "wait_for_agent_lock"}
	}
	return Response{Data: row{
		"lrm_status":     local,
		"manager_status": row{"master_node": serving.Name, "node_status": states, "service_status": row{}},
		"quorum":         row{"node": serving.Name, "quorate": boolInt(!e.noQuorum)},
	}}, nil
}
