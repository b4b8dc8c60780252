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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func listACL(_ *api.Request, d *access.Data, all bool) []api.Row {
	rows := []api.Row{}
	for _, a := range *d.ACL {
		if all {
			rows = append(rows, api.Row{"path": a.Path, "type": a.Kind, "ugid": a.ID, "roleid": a.Role, "propagate": api.BoolInt(a.Propagate)})
		}
	}
	return rows
}

func putACL(k *kernel.Kernel) api.Handler {
	return func(ctx context.Context, r *api.Request) (api.Response, error) {
		if r.Params.Values["users"]+r.Params.Values["groups"]+r.Params.Values["tokens"] == "" {
			const text = "either 'users', 'groups' or 'tokens' is required."
			return api.Response{}, api.ParamError(map[string]string{"users": text, "groups": text, "tokens": text})
		}
		return change(k, "ACL update", updateACL)(ctx, r)
	}
}

func updateACL(r *api.Request, d *access.Data) error {
	path := r.Params.Values["path"]
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
	}
	update := d.Grant
	if r.Bool("delete") {
		update = d.Revoke
	}
	for _, role := range schema.SplitList(r.Params.Values["roles"]) {
		if d.Roles[role] == nil {
			return fmt.Errorf("role '%s' does not exist", role)
		}
		for param, kind := range map[string]string{"users": "user", "groups": "group", "tokens": "token"} {
			for _, id := range schema.SplitList(r.Params.Values[param]) {
				if err := checkSubject(d, kind, id); err != nil {
					return err
				}
				update(access.Entry{Path: path, Kind: kind, ID: id, Role: role, Propagate: r.Params.Values["propagate"] != "0"})
			}
		}
	}
	return nil
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

func getRoles(_ *api.Request, d *access.Data) (any, error) {
	rows := []api.Row{}
	for _, id := range slices.Sorted(maps.Keys(d.Roles)) {
		privs := strings.Join(slices.Sorted(slices.Values(d.Roles[id].Privileges)), ",")
		rows = append(rows, api.Row{"roleid": id, "privs": privs, "special": api.BoolInt(d.Roles[id].Special)})
	}
	return rows, nil
}

func getRole(r *api.Request, d *access.Data) (any, error) {
	role := d.Roles[r.Params.Values["roleid"]]
	if role == nil {
		return nil, api.Failf("role '%s' does not exist", r.Params.Values["roleid"])
	}
	out := api.Row{}
	for _, p := range role.Privileges {
		out[p] = 1
	}
	return out, nil
}

func postRole(r *api.Request, d *access.Data) error {
	id := r.Params.Values["roleid"]
	if d.Roles[id] != nil {
		return fmt.Errorf("role '%s' already exists", id)
	}
	d.Roles[id] = &access.Role{Privileges: schema.SplitList(r.Params.Values["privs"])}
	return nil
}

// findCustomRole returns the role in a request. It fails if the role is built in.
func findCustomRole(r *api.Request, d *access.Data, action string) (*access.Role, error) {
	id := r.Params.Values["roleid"]
	switch role := d.Roles[id]; {
	case role == nil:
		return nil, fmt.Errorf("role '%s' does not exist", id)
	case role.Special:
		return nil, fmt.Errorf("auto-generated role '%s' cannot be %s", id, action)
	default:
		return role, nil
	}
}

func putRole(r *api.Request, d *access.Data) error {
	role, err := findCustomRole(r, d, "modified")
	if err != nil {
		return err
	}
	privs := schema.SplitList(r.Params.Values["privs"])
	if r.Bool("append") {
		privs = append(privs, role.Privileges...)
	}
	role.Privileges = slices.Compact(slices.Sorted(slices.Values(privs)))
	return nil
}

func deleteRole(r *api.Request, d *access.Data) error {
	_, err := findCustomRole(r, d, "deleted")
	if err == nil {
		delete(d.Roles, r.Params.Values["roleid"])
	}
	return err
}
