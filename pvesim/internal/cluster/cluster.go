// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

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
