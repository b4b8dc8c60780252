// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func (ih *ipsetHandlers) getIPSets(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	rows := []api.Row{}
	sets := ih.file(scope(r)).ipsets
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		rows = append(rows, api.Row{"name": name, "digest": api.Digest(slices.Sorted(maps.Keys(sets)))})
	}
	return api.Response{Data: rows}, nil
}

func (ih *ipsetHandlers) postIPSet(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	sets, name := ih.file(scope(r)).ipsets, r.Params.Values["name"]
	if _, exists := sets[name]; exists {
		return api.Response{}, api.BadParam("name", "IPSet '%s' already exists", name)
	}
	sets[name] = []map[string]string{}
	return api.Response{}, nil
}

func (ih *ipsetHandlers) deleteIPSet(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	sets, name := ih.file(scope(r)).ipsets, r.Params.Values["name"]
	if len(sets[name]) > 0 && !r.Bool("force") {
		return api.Response{}, api.Failf("IPSet '%s' is not empty", name)
	}
	delete(sets, name)
	return api.Response{}, nil
}

func (ih *ipsetHandlers) getIPSet(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	entries, ok := ih.file(scope(r)).ipsets[r.Params.Values["name"]]
	if !ok {
		return api.Response{}, api.Failf("no such IPSet '%s'", r.Params.Values["name"])
	}
	rows := []api.Row{}
	for _, entry := range entries {
		out := newRow(entry)
		out["digest"] = api.Digest(entries)
		rows = append(rows, out)
	}
	return api.Response{Data: rows}, nil
}

func (ih *ipsetHandlers) postIPSetEntry(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	sets, name := ih.file(scope(r)).ipsets, r.Params.Values["name"]
	if _, ok := sets[name]; !ok {
		return api.Response{}, api.Failf("no such IPSet '%s'", name)
	}
	entry := params(r)
	for _, old := range sets[name] {
		if old["cidr"] == entry["cidr"] {
			return api.Response{}, api.BadParam("cidr", "address '%s' already exists", entry["cidr"])
		}
	}
	sets[name] = append(sets[name], entry)
	return api.Response{}, nil
}

// findEntry returns an IP set and the index of an address in it.
func (ih *ipsetHandlers) findEntry(r *api.Request) (set []map[string]string, index int, err error) {
	name, cidr := r.Params.Values["name"], r.Params.Values["cidr"]
	set, ok := ih.file(scope(r)).ipsets[name]
	if !ok {
		return nil, 0, api.Failf("no such IPSet '%s'", name)
	}
	index = slices.IndexFunc(set, func(m map[string]string) bool { return m["cidr"] == cidr })
	if index < 0 {
		return nil, 0, api.BadParam("cidr", "no such IP/Network")
	}
	return set, index, nil
}

func (ih *ipsetHandlers) getIPSetEntry(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	set, i, err := ih.findEntry(r)
	if err != nil {
		return api.Response{}, err
	}
	out := newRow(set[i])
	out["digest"] = api.Digest(set)
	return api.Response{Data: out}, nil
}

func (ih *ipsetHandlers) putIPSetEntry(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	set, i, err := ih.findEntry(r)
	if err != nil {
		return api.Response{}, err
	}
	maps.Copy(set[i], params(r))
	return api.Response{}, nil
}

func (ih *ipsetHandlers) deleteIPSetEntry(_ context.Context, r *api.Request) (api.Response, error) {
	ih.k.Mu.Lock()
	defer ih.k.Mu.Unlock()
	set, i, err := ih.findEntry(r)
	if err != nil {
		return api.Response{}, nil // deleting a missing entry is not an error in Proxmox
	}
	ih.file(scope(r)).ipsets[r.Params.Values["name"]] = slices.Delete(set, i, i+1)
	return api.Response{}, nil
}

func (ah *aliasHandlers) getAliases(_ context.Context, r *api.Request) (api.Response, error) {
	ah.k.Mu.Lock()
	defer ah.k.Mu.Unlock()
	rows := []api.Row{}
	aliases := ah.file(scope(r)).aliases
	for _, name := range slices.Sorted(maps.Keys(aliases)) {
		out := newRow(aliases[name])
		out["name"], out["digest"] = name, api.Digest(aliases)
		rows = append(rows, out)
	}
	return api.Response{Data: rows}, nil
}

func (ah *aliasHandlers) postAlias(_ context.Context, r *api.Request) (api.Response, error) {
	ah.k.Mu.Lock()
	defer ah.k.Mu.Unlock()
	aliases, name := ah.file(scope(r)).aliases, strings.ToLower(r.Params.Values["name"])
	if aliases[name] != nil {
		return api.Response{}, api.BadParam("name", "alias '%s' already exists", name)
	}
	aliases[name] = params(r)
	return api.Response{}, nil
}

func (ah *aliasHandlers) findAlias(r *api.Request) (name string, fields map[string]string, err error) {
	name = strings.ToLower(r.Params.Values["name"])
	fields = ah.file(scope(r)).aliases[name]
	if fields == nil {
		err = api.BadParam("name", "no such alias")
	}
	return name, fields, err
}

func (ah *aliasHandlers) getAlias(_ context.Context, r *api.Request) (api.Response, error) {
	ah.k.Mu.Lock()
	defer ah.k.Mu.Unlock()
	name, fields, err := ah.findAlias(r)
	if err != nil {
		return api.Response{}, err
	}
	out := newRow(fields)
	out["name"] = name
	return api.Response{Data: out}, nil
}

func (ah *aliasHandlers) putAlias(_ context.Context, r *api.Request) (api.Response, error) {
	ah.k.Mu.Lock()
	defer ah.k.Mu.Unlock()
	name, fields, err := ah.findAlias(r)
	if err != nil {
		return api.Response{}, err
	}
	maps.Copy(fields, params(r))
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(fields, k)
	}
	if to, ok := r.Value("rename"); ok {
		aliases := ah.file(scope(r)).aliases
		delete(aliases, name)
		aliases[strings.ToLower(to)] = fields
	}
	return api.Response{}, nil
}

func (ah *aliasHandlers) deleteAlias(_ context.Context, r *api.Request) (api.Response, error) {
	ah.k.Mu.Lock()
	defer ah.k.Mu.Unlock()
	delete(ah.file(scope(r)).aliases, strings.ToLower(r.Params.Values["name"]))
	return api.Response{}, nil
}
