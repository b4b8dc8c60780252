// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package accessapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func (rh *roleHandlers) getRoles(context.Context, *api.Request) (api.Response, error) {
	rows := []api.Row{}
	rh.k.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Roles)) {
			role := d.Roles[id]
			rows = append(rows, api.Row{"roleid": id, "privs": strings.Join(slices.Sorted(slices.Values(role.Privileges)), ","), "special": api.BoolInt(role.Special)})
		}
	})
	return api.Response{Data: rows}, nil
}

func (rh *roleHandlers) getRole(_ context.Context, r *api.Request) (api.Response, error) {
	out := api.Row{}
	found := false
	rh.k.Access.View(func(d *access.Data) {
		if role := d.Roles[r.Params.Values["roleid"]]; role != nil {
			found = true
			for _, p := range role.Privileges {
				out[p] = 1
			}
		}
	})
	if !found {
		return api.Response{}, api.Failf("role '%s' does not exist", r.Params.Values["roleid"])
	}
	return api.Response{Data: out}, nil
}

func (rh *roleHandlers) postRole(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["roleid"]
	return rh.k.ChangeUserConfig(ctx, "create role", func(d *access.Data) error {
		if d.Roles[id] != nil {
			return fmt.Errorf("role '%s' already exists", id)
		}
		d.Roles[id] = &access.Role{Privileges: schema.SplitList(r.Params.Values["privs"])}
		return nil
	})
}

func (rh *roleHandlers) putRole(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["roleid"]
	return rh.k.ChangeUserConfig(ctx, "update role", func(d *access.Data) error {
		role := d.Roles[id]
		switch {
		case role == nil:
			return fmt.Errorf("role '%s' does not exist", id)
		case role.Special:
			return fmt.Errorf("auto-generated role '%s' cannot be modified", id)
		}
		privs := schema.SplitList(r.Params.Values["privs"])
		if r.Bool("append") {
			privs = append(privs, role.Privileges...)
		}
		role.Privileges = slices.Compact(slices.Sorted(slices.Values(privs)))
		return nil
	})
}

func (rh *roleHandlers) deleteRole(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["roleid"]
	return rh.k.ChangeUserConfig(ctx, "delete role", func(d *access.Data) error {
		role := d.Roles[id]
		switch {
		case role == nil:
			return fmt.Errorf("role '%s' does not exist", id)
		case role.Special:
			return fmt.Errorf("auto-generated role '%s' cannot be deleted", id)
		}
		delete(d.Roles, id)
		return nil
	})
}
