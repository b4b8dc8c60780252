// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collection serves objects that the API creates, changes and deletes.
package collection

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// Collection is a set of objects of one kind: HA rules and groups, resource mappings, SDN zones and virtual networks.
type Collection struct {
	k        *kernel.Kernel
	param    string // the parameter with the ID of an object
	noun     string
	items    map[string]api.Row
	readable func(r *api.Request, item api.Row) bool

	// Check, if set, checks an object that is created or changed. The caller holds the mutex.
	Check func(item api.Row) error
}

// New returns an empty collection. The parameter param contains the ID of an object; noun names the kind in errors.
// Lists contain only objects for which readable returns true, or all if it is nil.
func New(k *kernel.Kernel, param, noun string, readable func(r *api.Request, item api.Row) bool) *Collection {
	return &Collection{k: k, param: param, noun: noun, items: map[string]api.Row{}, readable: readable}
}

// Add adds an object without a request.
func (c *Collection) Add(id string, fields api.Row) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	fields[c.param] = id
	c.items[id] = fields
}

// Has reports whether an object exists. The caller holds the mutex.
func (c *Collection) Has(id string) bool { return c.items[id] != nil }

// IDs returns the IDs of all objects in order. The caller holds the mutex.
func (c *Collection) IDs() []string { return slices.Sorted(maps.Keys(c.items)) }

// Field returns a field of an object, or nil. The caller holds the mutex.
func (c *Collection) Field(id, name string) any { return c.items[id][name] }

// SetField sets a field of an object. The caller holds the mutex.
func (c *Collection) SetField(id, name string, value any) { c.items[id][name] = value }

// Delete deletes an object. The caller holds the mutex.
func (c *Collection) Delete(id string) { delete(c.items, id) }

// check calls Check.
func (c *Collection) check(item api.Row) error {
	if c.Check == nil {
		return nil
	}
	return c.Check(item)
}

func (c *Collection) list(_ context.Context, r *api.Request) (api.Response, error) {
	c.k.Mu.Lock()
	var all []api.Row
	for _, id := range c.IDs() {
		all = append(all, c.row(id))
	}
	c.k.Mu.Unlock()
	rows := []api.Row{}
	for _, item := range all {
		if typ, ok := r.Value("type"); ok && item["type"] != typ {
			continue
		}
		if c.readable == nil || c.readable(r, item) {
			rows = append(rows, item)
		}
	}
	return api.Response{Data: rows}, nil
}

// row returns a copy of an object for a response. The caller holds the mutex.
func (c *Collection) row(id string) api.Row {
	out := api.Row{"digest": api.Digest(c.items)}
	maps.Copy(out, c.items[id])
	return out
}

// find returns the ID in a request. It fails if the object does not exist.
func (c *Collection) find(r *api.Request) (id string, err error) {
	if id = r.Params.Values[c.param]; c.items[id] == nil {
		return "", api.Failf("%s '%s' does not exist", c.noun, id)
	}
	return id, nil
}

func (c *Collection) get(r *api.Request) (any, error) {
	id, err := c.find(r)
	if err != nil {
		return nil, err
	}
	return c.row(id), nil
}

func (c *Collection) post(r *api.Request) error {
	id := r.Params.Values[c.param]
	if c.items[id] != nil {
		return api.Failf("%s '%s' already defined", c.noun, id)
	}
	item := api.Row{}
	setFields(item, r)
	if err := c.check(item); err != nil {
		return err
	}
	c.items[id] = item
	return nil
}

func (c *Collection) put(r *api.Request) error {
	id, err := c.find(r)
	if err != nil {
		return err
	}
	if d, ok := r.Value("digest"); ok && d != api.Digest(c.items) {
		return api.Failf("detected modified configuration - file changed by other user? Try again.")
	}
	item := maps.Clone(c.items[id])
	setFields(item, r)
	api.DeleteListed(r, item)
	if err := c.check(item); err != nil {
		return err
	}
	c.items[id] = item
	return nil
}

func (c *Collection) remove(r *api.Request) error {
	id, err := c.find(r)
	if err == nil {
		delete(c.items, id)
	}
	return err
}

// quorate returns the handler of a change, which needs quorum.
func quorate(k *kernel.Kernel, change func(r *api.Request) error) api.Handler {
	return func(ctx context.Context, r *api.Request) (api.Response, error) {
		if err := k.CheckQuorum(r); err != nil {
			return api.Response{}, err
		}
		return kernel.Change(k, change)(ctx, r)
	}
}

// setFields stores the parameters of a request with the types that responses have.
func setFields(item api.Row, r *api.Request) {
	for k, v := range api.ParamsExcept(r, "delete", "digest", "lock-token") {
		item[k] = schema.JSONValue(r.Method, k, v)
	}
	for k, list := range r.Params.Lists {
		item[k] = slices.Clone(list)
	}
}

// Handlers returns the handlers of the collection below a path.
func (c *Collection) Handlers(path string) map[string]api.Handler {
	one := fmt.Sprintf("%s/{%s}", path, c.param)
	return map[string]api.Handler{
		"GET " + path: c.list, "POST " + path: quorate(c.k, c.post),
		"GET " + one: kernel.Read(c.k, c.get), "PUT " + one: quorate(c.k, c.put), "DELETE " + one: quorate(c.k, c.remove),
	}
}
