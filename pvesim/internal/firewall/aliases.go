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
