// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// collection is a list of objects that the API creates, changes and deletes but that the simulator does not look into:
// HA rules and groups, resource mappings, SDN zones and virtual networks.
type collection struct {
	engine *Engine
	param  string // the parameter that names an object
	noun   string
	items  map[string]row
	// readable decides who sees an object; nil means everybody who may call.
	readable func(r *Request, item row) bool
}

func (e *Engine) newCollection(param, noun string) *collection {
	return &collection{engine: e, param: param, noun: noun, items: map[string]row{}}
}

// add puts an object in without a request.
func (c *collection) add(id string, fields row) {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	fields[c.param] = id
	c.items[id] = fields
}

// has reports whether an object exists. The caller holds the mutex.
func (c *collection) has(id string) bool { return c.items[id] != nil }

// ids lists the objects in order. The caller holds the mutex.
func (c *collection) ids() []string { return slices.Sorted(maps.Keys(c.items)) }

// field is a field of an object, nil if there is none. The caller holds the mutex.
func (c *collection) field(id, name string) any { return c.items[id][name] }

func (c *collection) list(_ context.Context, r *Request) (Response, error) {
	c.engine.mu.Lock()
	var all []row
	for _, id := range slices.Sorted(maps.Keys(c.items)) {
		all = append(all, c.shown(id))
	}
	c.engine.mu.Unlock()
	rows := []row{}
	for _, item := range all {
		if typ, ok := r.value("type"); ok && item["type"] != typ {
			continue
		}
		if c.readable == nil || c.readable(r, item) {
			rows = append(rows, item)
		}
	}
	return Response{Data: rows}, nil
}

// shown copies an object for an answer. The caller holds the engine's mutex.
func (c *collection) shown(id string) row {
	out := row{"digest": digestOf(c.items)}
	maps.Copy(out, c.items[id])
	return out
}

func (c *collection) get(_ context.Context, r *Request) (Response, error) {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	id := r.Params.Values[c.param]
	if c.items[id] == nil {
		return Response{}, failf("%s '%s' does not exist", c.noun, id)
	}
	return Response{Data: c.shown(id)}, nil
}

func (c *collection) post(_ context.Context, r *Request) (Response, error) {
	if err := c.engine.checkQuorum(); err != nil {
		return Response{}, err
	}
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	id := r.Params.Values[c.param]
	if c.items[id] != nil {
		return Response{}, failf("%s '%s' already defined", c.noun, id)
	}
	c.items[id] = row{}
	c.fill(r, id)
	return Response{}, nil
}

func (c *collection) put(_ context.Context, r *Request) (Response, error) {
	if err := c.engine.checkQuorum(); err != nil {
		return Response{}, err
	}
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	id := r.Params.Values[c.param]
	if c.items[id] == nil {
		return Response{}, failf("%s '%s' does not exist", c.noun, id)
	}
	if d, ok := r.value("digest"); ok && d != digestOf(c.items) {
		return Response{}, failf("detected modified configuration - file changed by other user? Try again.")
	}
	c.fill(r, id)
	for _, k := range schema.SplitList(r.Params.Values["delete"]) {
		delete(c.items[id], k)
	}
	return Response{}, nil
}

func (c *collection) remove(_ context.Context, r *Request) (Response, error) {
	if err := c.engine.checkQuorum(); err != nil {
		return Response{}, err
	}
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	id := r.Params.Values[c.param]
	if c.items[id] == nil {
		return Response{}, failf("%s '%s' does not exist", c.noun, id)
	}
	delete(c.items, id)
	return Response{}, nil
}

// fill stores a request's parameters with the types that answers have.
func (c *collection) fill(r *Request, id string) {
	for k, v := range r.Params.Values {
		if slices.Contains([]string{"delete", "digest", "lock-token"}, k) {
			continue
		}
		c.items[id][k] = typedBy(r.method, k, v)
	}
	for k, list := range r.Params.Lists {
		c.items[id][k] = slices.Clone(list)
	}
}

func typedBy(m *schema.Method, key, v string) any {
	p := m.Lookup(key)
	switch {
	case p != nil && p.Type == "array":
		return []string{v}
	case p != nil && (p.Type == "integer" || p.Type == "boolean"):
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n
		}
	}
	return v
}

// handlers are the five methods of a collection below a path.
func (c *collection) handlers(path string) map[string]Handler {
	one := fmt.Sprintf("%s/{%s}", path, c.param)
	return map[string]Handler{
		"GET " + path: c.list, "POST " + path: c.post, "GET " + one: c.get, "PUT " + one: c.put, "DELETE " + one: c.remove,
	}
}
