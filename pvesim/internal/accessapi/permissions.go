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

func (ah *aclHandlers) getACL(_ context.Context, r *api.Request) (api.Response, error) {
	all := ah.k.Access.HasAny(r.Who, "/access", "Sys.Audit", "Permissions.Modify")
	rows := []api.Row{}
	ah.k.Access.View(func(d *access.Data) {
		for _, a := range *d.ACL {
			if all {
				rows = append(rows, api.Row{"path": a.Path, "type": a.Kind, "ugid": a.ID, "roleid": a.Role, "propagate": api.BoolInt(a.Propagate)})
			}
		}
	})
	return api.Response{Data: rows}, nil
}

func (ah *aclHandlers) putACL(ctx context.Context, r *api.Request) (api.Response, error) {
	kinds := map[string]string{"users": "user", "groups": "group", "tokens": "token"}
	if r.Params.Values["users"]+r.Params.Values["groups"]+r.Params.Values["tokens"] == "" {
		return api.Response{}, api.ParamError(map[string]string{
			"users": "either 'users', 'groups' or 'tokens' is required.", "groups": "either 'users', 'groups' or 'tokens' is required.",
			"tokens": "either 'users', 'groups' or 'tokens' is required.",
		})
	}
	path := r.Params.Values["path"]
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
	}
	propagate := r.Params.Values["propagate"] != "0"
	return ah.k.ChangeUserConfig(ctx, "ACL update", func(d *access.Data) error {
		for _, role := range schema.SplitList(r.Params.Values["roles"]) {
			if d.Roles[role] == nil {
				return fmt.Errorf("role '%s' does not exist", role)
			}
			for param, kind := range kinds {
				for _, id := range schema.SplitList(r.Params.Values[param]) {
					if err := checkSubject(d, kind, id); err != nil {
						return err
					}
					entry := access.Entry{Path: path, Kind: kind, ID: id, Role: role, Propagate: propagate}
					if r.Bool("delete") {
						d.Revoke(entry)
					} else {
						d.Grant(entry)
					}
				}
			}
		}
		return nil
	})
}

func checkSubject(d *access.Data, kind, id string) error {
	user, token, _ := strings.Cut(id, "!")
	switch {
	case kind == "group":
		if _, ok := d.Groups[id]; !ok {
			return fmt.Errorf("group '%s' does not exist", id)
		}
		return nil
	case d.Users[user] == nil:
		return fmt.Errorf("user '%s' does not exist", user)
	case kind == "token" && d.Users[user].Tokens[token] == nil:
		return fmt.Errorf("no such token '%s' for user '%s'", token, user)
	}
	return nil
}

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
