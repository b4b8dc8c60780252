// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

func (gh *groupHandlers) getGroups(context.Context, *api.Request) (api.Response, error) {
	gh.k.Mu.Lock()
	defer gh.k.Mu.Unlock()
	rows := []api.Row{}
	for _, name := range slices.Sorted(maps.Keys(gh.groups)) {
		out := api.Row{"group": name, "digest": api.Digest(slices.Sorted(maps.Keys(gh.groups)))}
		if c := gh.groups[name].comment; c != "" {
			out["comment"] = c
		}
		rows = append(rows, out)
	}
	return api.Response{Data: rows}, nil
}

func (gh *groupHandlers) postGroup(_ context.Context, r *api.Request) (api.Response, error) {
	gh.k.Mu.Lock()
	defer gh.k.Mu.Unlock()
	name := r.Params.Values["group"]
	if gh.groups[name] != nil && r.Params.Values["rename"] == "" {
		return api.Response{}, api.BadParam("group", "Security group '%s' already exists", name)
	}
	group := &securityGroup{comment: r.Params.Values["comment"]}
	if old, ok := r.Value("rename"); ok {
		if gh.groups[old] == nil {
			return api.Response{}, api.BadParam("rename", "Security group '%s' does not exist", old)
		}
		group.rules = gh.groups[old].rules
		delete(gh.groups, old)
	}
	gh.groups[name] = group
	return api.Response{}, nil
}

func (gh *groupHandlers) deleteGroup(_ context.Context, r *api.Request) (api.Response, error) {
	gh.k.Mu.Lock()
	defer gh.k.Mu.Unlock()
	name := r.Params.Values["group"]
	g := gh.groups[name]
	if g == nil {
		return api.Response{}, nil
	}
	if len(g.rules) > 0 {
		return api.Response{}, api.Failf("Security group '%s' is not empty", name)
	}
	delete(gh.groups, name)
	return api.Response{}, nil
}
