// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ha

import (
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// sid returns the resource ID of a request; "100" is short for "vm:100".
func sid(r *api.Request) string {
	v := r.Params.Values["sid"]
	if !strings.Contains(v, ":") {
		return "vm:" + v
	}
	return v
}

func (hh *handlers) getResources(_ context.Context, _ *api.Request) (api.Response, error) {
	hh.k.Mu.Lock()
	defer hh.k.Mu.Unlock()
	rows := []api.Row{}
	for _, sid := range slices.Sorted(maps.Keys(hh.resources)) {
		rows = append(rows, hh.resourceRow(sid))
	}
	return api.Response{Data: rows}, nil
}

func (hh *handlers) getResource(_ context.Context, r *api.Request) (api.Response, error) {
	hh.k.Mu.Lock()
	defer hh.k.Mu.Unlock()
	if hh.resources[sid(r)] == nil {
		return api.Response{}, api.Failf("no such resource '%s'", sid(r))
	}
	return api.Response{Data: hh.resourceRow(sid(r))}, nil
}

func (hh *handlers) resourceRow(sid string) api.Row {
	out := api.NewRow(hh.resources[sid])
	out["sid"], out["digest"] = sid, hh.digest()
	out["type"], _, _ = strings.Cut(sid, ":")
	return out
}

func (hh *handlers) digest() string {
	var b strings.Builder
	for _, sid := range slices.Sorted(maps.Keys(hh.resources)) {
		fmt.Fprintf(&b, "%s %v\n", sid, hh.resources[sid])
	}
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

func (hh *handlers) postResource(_ context.Context, r *api.Request) (api.Response, error) {
	sid := sid(r)
	hh.k.Mu.Lock()
	defer hh.k.Mu.Unlock()
	if hh.resources[sid] != nil {
		return api.Response{}, api.Failf("resource ID '%s' already defined", sid)
	}
	var vmid int
	if _, err := fmt.Sscanf(sid, "vm:%d", &vmid); err == nil && hh.k.Guests[vmid] == nil {
		return api.Response{}, api.Failf("unable to find VM %d", vmid)
	}
	hh.resources[sid] = setFields(r, map[string]string{"state": stateStarted})
	hh.Reconcile(vmid)
	return api.Response{}, nil
}

func setFields(r *api.Request, into map[string]string) map[string]string {
	for k, v := range r.Params.Values {
		if k != "sid" && k != "type" && k != "digest" && k != "delete" {
			into[k] = v
		}
	}
	return into
}

func (hh *handlers) putResource(_ context.Context, r *api.Request) (api.Response, error) {
	hh.k.Mu.Lock()
	defer hh.k.Mu.Unlock()
	res := hh.resources[sid(r)]
	if res == nil {
		return api.Response{}, api.Failf("no such resource '%s'", sid(r))
	}
	setFields(r, res)
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(res, k)
	}
	var vmid int
	if _, err := fmt.Sscanf(sid(r), "vm:%d", &vmid); err == nil {
		hh.Reconcile(vmid)
	}
	return api.Response{}, nil
}

func (hh *handlers) deleteResource(_ context.Context, r *api.Request) (api.Response, error) {
	hh.k.Mu.Lock()
	defer hh.k.Mu.Unlock()
	if hh.resources[sid(r)] == nil {
		return api.Response{}, api.Failf("cannot delete service '%s', not HA managed!", sid(r))
	}
	delete(hh.resources, sid(r))
	return api.Response{}, nil
}

func (hh *handlers) getStatus(context.Context, *api.Request) (api.Response, error) {
	serving := hh.k.ServingHost()
	hh.k.Mu.Lock()
	defer hh.k.Mu.Unlock()
	text := "OK"
	if hh.k.NoQuorum {
		text = "No quorum on node '" + serving.Name + "'!"
	}
	rows := []api.Row{{"id": "quorum", "type": "quorum", "node": serving.Name, "status": text, "quorate": api.BoolInt(!hh.k.NoQuorum)}}
	for _, sid := range slices.Sorted(maps.Keys(hh.resources)) {
		rows = append(rows, api.Row{"id": "service:" + sid, "type": "service", "sid": sid, "state": hh.resources[sid]["state"], "status": hh.resources[sid]["state"]})
	}
	return api.Response{Data: rows}, nil
}

// getManagerStatus returns the state of each host in the view of the HA manager.
func (hh *handlers) getManagerStatus(context.Context, *api.Request) (api.Response, error) {
	serving := hh.k.ServingHost()
	hh.k.Mu.Lock()
	defer hh.k.Mu.Unlock()
	states, local := api.Row{}, api.Row{}
	for _, h := range hh.k.Hosts {
		state, mode := "online", "active"
		switch {
		case !h.Online:
			state = "unknown"
		case h.Maintenance:
			state, mode = "maintenance", "maintenance"
		}
		states[h.Name] = state
		local[h.Name] = api.Row{"mode": mode, "results": api.Row{}, "state": "wait_for_agent_lock"}
	}
	return api.Response{Data: api.Row{
		"lrm_status":     local,
		"manager_status": api.Row{"master_node": serving.Name, "node_status": states, "service_status": api.Row{}},
		"quorum":         api.Row{"node": serving.Name, "quorate": api.BoolInt(!hh.k.NoQuorum)},
	}}, nil
}
