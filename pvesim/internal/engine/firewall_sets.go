// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func (e *Engine) getIPSets(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	sets := e.firewall.file(scope(r)).ipsets
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		rows = append(rows, row{"name": name, "digest": digestOf(slices.Sorted(maps.Keys(sets)))})
	}
	return Response{Data: rows}, nil
}

func (e *Engine) postIPSet(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sets, name := e.firewall.file(scope(r)).ipsets, r.Params.Values["name"]
	if _, exists := sets[name]; exists {
		return Response{}, badParam("name", "IPSet '%s' already exists", name)
	}
	sets[name] = []map[string]string{}
	return Response{}, nil
}

func (e *Engine) deleteIPSet(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sets, name := e.firewall.file(scope(r)).ipsets, r.Params.Values["name"]
	if len(sets[name]) > 0 && !r.on("force") {
		return Response{}, failf("IPSet '%s' is not empty", name)
	}
	delete(sets, name)
	return Response{}, nil
}

func (e *Engine) getIPSet(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	entries, ok := e.firewall.file(scope(r)).ipsets[r.Params.Values["name"]]
	if !ok {
		return Response{}, failf("no such IPSet '%s'", r.Params.Values["name"])
	}
	rows := []row{}
	for _, entry := range entries {
		out := firewallRow(entry)
		out["digest"] = digestOf(entries)
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

func (e *Engine) postIPSetEntry(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sets, name := e.firewall.file(scope(r)).ipsets, r.Params.Values["name"]
	if _, ok := sets[name]; !ok {
		return Response{}, failf("no such IPSet '%s'", name)
	}
	entry := firewallParams(r)
	for _, old := range sets[name] {
		if old["cidr"] == entry["cidr"] {
			return Response{}, badParam("cidr", "address '%s' already exists", entry["cidr"])
		}
	}
	sets[name] = append(sets[name], entry)
	return Response{}, nil
}

func (e *Engine) getAliases(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	aliases := e.firewall.file(scope(r)).aliases
	for _, name := range slices.Sorted(maps.Keys(aliases)) {
		out := firewallRow(aliases[name])
		out["name"], out["digest"] = name, digestOf(aliases)
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

func (e *Engine) postAlias(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	aliases, name := e.firewall.file(scope(r)).aliases, strings.ToLower(r.Params.Values["name"])
	if aliases[name] != nil {
		return Response{}, badParam("name", "alias '%s' already exists", name)
	}
	aliases[name] = firewallParams(r)
	return Response{}, nil
}

// entry finds an address in an IP set.
func (e *Engine) ipsetEntry(r *Request) (set []map[string]string, index int, err error) {
	name, cidr := r.Params.Values["name"], r.Params.Values["cidr"]
	set, ok := e.firewall.file(scope(r)).ipsets[name]
	if !ok {
		return nil, 0, failf("no such IPSet '%s'", name)
	}
	index = slices.IndexFunc(set, func(m map[string]string) bool { return m["cidr"] == cidr })
	if index < 0 {
		return nil, 0, badParam("cidr", "no such IP/Network")
	}
	return set, index, nil
}

func (e *Engine) getIPSetEntry(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	set, i, err := e.ipsetEntry(r)
	if err != nil {
		return Response{}, err
	}
	out := firewallRow(set[i])
	out["digest"] = digestOf(set)
	return Response{Data: out}, nil
}

func (e *Engine) putIPSetEntry(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	set, i, err := e.ipsetEntry(r)
	if err != nil {
		return Response{}, err
	}
	maps.Copy(set[i], firewallParams(r))
	return Response{}, nil
}

func (e *Engine) deleteIPSetEntry(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	set, i, err := e.ipsetEntry(r)
	if err != nil {
		return Response{}, nil // Proxmox does not mind that it is gone already
	}
	e.firewall.file(scope(r)).ipsets[r.Params.Values["name"]] = slices.Delete(set, i, i+1)
	return Response{}, nil
}

func (e *Engine) alias(r *Request) (name string, fields map[string]string, err error) {
	name = strings.ToLower(r.Params.Values["name"])
	fields = e.firewall.file(scope(r)).aliases[name]
	if fields == nil {
		err = badParam("name", "no such alias")
	}
	return name, fields, err
}

func (e *Engine) getAlias(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name, fields, err := e.alias(r)
	if err != nil {
		return Response{}, err
	}
	out := firewallRow(fields)
	out["name"] = name
	return Response{Data: out}, nil
}

func (e *Engine) putAlias(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name, fields, err := e.alias(r)
	if err != nil {
		return Response{}, err
	}
	maps.Copy(fields, firewallParams(r))
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(fields, k)
	}
	if to, ok := r.value("rename"); ok {
		aliases := e.firewall.file(scope(r)).aliases
		delete(aliases, name)
		aliases[strings.ToLower(to)] = fields
	}
	return Response{}, nil
}

func (e *Engine) deleteAlias(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.firewall.file(scope(r)).aliases, strings.ToLower(r.Params.Values["name"]))
	return Response{}, nil
}
