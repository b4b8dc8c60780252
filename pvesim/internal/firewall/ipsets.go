// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

func (ih *ipsetHandlers) getIPSets(r *api.Request) (any, error) {
	rows := []api.Row{}
	sets := ih.file(scope(r)).ipsets
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		rows = append(rows, api.Row{"name": name, "digest": api.Digest(slices.Sorted(maps.Keys(sets)))})
	}
	return rows, nil
}

func (ih *ipsetHandlers) postIPSet(r *api.Request) error {
	sets, name := ih.file(scope(r)).ipsets, r.Params.Values["name"]
	if _, exists := sets[name]; exists {
		return api.BadParam("name", "IPSet '%s' already exists", name)
	}
	sets[name] = []map[string]string{}
	return nil
}

func (ih *ipsetHandlers) deleteIPSet(r *api.Request) error {
	sets, name := ih.file(scope(r)).ipsets, r.Params.Values["name"]
	if len(sets[name]) > 0 && !r.Bool("force") {
		return api.Failf("IPSet '%s' is not empty", name)
	}
	delete(sets, name)
	return nil
}

func (ih *ipsetHandlers) getIPSet(r *api.Request) (any, error) {
	entries, ok := ih.file(scope(r)).ipsets[r.Params.Values["name"]]
	if !ok {
		return nil, api.Failf("no such IPSet '%s'", r.Params.Values["name"])
	}
	rows := []api.Row{}
	for _, entry := range entries {
		out := newRow(entry)
		out["digest"] = api.Digest(entries)
		rows = append(rows, out)
	}
	return rows, nil
}

func (ih *ipsetHandlers) postIPSetEntry(r *api.Request) error {
	sets, name := ih.file(scope(r)).ipsets, r.Params.Values["name"]
	if _, ok := sets[name]; !ok {
		return api.Failf("no such IPSet '%s'", name)
	}
	entry := params(r)
	for _, old := range sets[name] {
		if old["cidr"] == entry["cidr"] {
			return api.BadParam("cidr", "address '%s' already exists", entry["cidr"])
		}
	}
	sets[name] = append(sets[name], entry)
	return nil
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

func (ih *ipsetHandlers) getIPSetEntry(r *api.Request) (any, error) {
	set, i, err := ih.findEntry(r)
	if err != nil {
		return nil, err
	}
	out := newRow(set[i])
	out["digest"] = api.Digest(set)
	return out, nil
}

func (ih *ipsetHandlers) putIPSetEntry(r *api.Request) error {
	set, i, err := ih.findEntry(r)
	if err != nil {
		return err
	}
	maps.Copy(set[i], params(r))
	return nil
}

func (ih *ipsetHandlers) deleteIPSetEntry(r *api.Request) error {
	if set, i, err := ih.findEntry(r); err == nil { // deleting a missing entry is not an error in Proxmox
		ih.file(scope(r)).ipsets[r.Params.Values["name"]] = slices.Delete(set, i, i+1)
	}
	return nil
}

func (ah *aliasHandlers) getAliases(r *api.Request) (any, error) {
	rows := []api.Row{}
	aliases := ah.file(scope(r)).aliases
	for _, name := range slices.Sorted(maps.Keys(aliases)) {
		out := newRow(aliases[name])
		out["name"], out["digest"] = name, api.Digest(aliases)
		rows = append(rows, out)
	}
	return rows, nil
}

func (ah *aliasHandlers) postAlias(r *api.Request) error {
	aliases, name := ah.file(scope(r)).aliases, strings.ToLower(r.Params.Values["name"])
	if aliases[name] != nil {
		return api.BadParam("name", "alias '%s' already exists", name)
	}
	aliases[name] = params(r)
	return nil
}

func (ah *aliasHandlers) findAlias(r *api.Request) (name string, fields map[string]string, err error) {
	name = strings.ToLower(r.Params.Values["name"])
	fields = ah.file(scope(r)).aliases[name]
	if fields == nil {
		err = api.BadParam("name", "no such alias")
	}
	return name, fields, err
}

func (ah *aliasHandlers) getAlias(r *api.Request) (any, error) {
	name, fields, err := ah.findAlias(r)
	if err != nil {
		return nil, err
	}
	out := newRow(fields)
	out["name"] = name
	return out, nil
}

func (ah *aliasHandlers) putAlias(r *api.Request) error {
	name, fields, err := ah.findAlias(r)
	if err != nil {
		return err
	}
	maps.Copy(fields, params(r))
	api.DeleteListed(r, fields)
	if to, ok := r.Value("rename"); ok {
		aliases := ah.file(scope(r)).aliases
		delete(aliases, name)
		aliases[strings.ToLower(to)] = fields
	}
	return nil
}

func (ah *aliasHandlers) deleteAlias(r *api.Request) error {
	delete(ah.file(scope(r)).aliases, strings.ToLower(r.Params.Values["name"]))
	return nil
}
