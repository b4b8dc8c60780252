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
)

// groupMembers returns the users of a group.
func groupMembers(d *access.Data, group string) []string {
	out := []string{}
	for _, id := range slices.Sorted(maps.Keys(d.Users)) {
		if slices.Contains(d.Users[id].Groups, group) {
			out = append(out, id)
		}
	}
	return out
}

func (gh *groupHandlers) getGroups(_ context.Context, r *api.Request) (api.Response, error) {
	all := gh.k.Access.HasAny(r.Who, "/access/groups", "User.Modify", "Group.Allocate", "Sys.Audit")
	rows := []api.Row{}
	gh.k.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Groups)) {
			if !all {
				continue
			}
			out := api.Row{"groupid": id, "users": strings.Join(groupMembers(d, id), ",")}
			if c := d.Groups[id]; c != "" {
				out["comment"] = c
			}
			rows = append(rows, out)
		}
	})
	return api.Response{Data: rows}, nil
}

func (gh *groupHandlers) getGroup(_ context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["groupid"]
	var out api.Row
	gh.k.Access.View(func(d *access.Data) {
		if c, ok := d.Groups[id]; ok {
			out = api.Row{"members": groupMembers(d, id)}
			if c != "" {
				out["comment"] = c
			}
		}
	})
	if out == nil {
		return api.Response{}, api.Failf("group '%s' does not exist", id)
	}
	return api.Response{Data: out}, nil
}

func (gh *groupHandlers) postGroup(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["groupid"]
	return gh.k.ChangeUserConfig(ctx, "create group", func(d *access.Data) error {
		if _, exists := d.Groups[id]; exists {
			return fmt.Errorf("group '%s' already exists", id)
		}
		d.Groups[id] = r.Params.Values["comment"]
		return nil
	})
}

func (gh *groupHandlers) putGroup(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["groupid"]
	return gh.k.ChangeUserConfig(ctx, "update group", func(d *access.Data) error {
		if _, exists := d.Groups[id]; !exists {
			return fmt.Errorf("group '%s' does not exist", id)
		}
		d.Groups[id] = r.Params.Values["comment"]
		return nil
	})
}

func (gh *groupHandlers) deleteGroup(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["groupid"]
	return gh.k.ChangeUserConfig(ctx, "delete group", func(d *access.Data) error {
		if _, exists := d.Groups[id]; !exists {
			return fmt.Errorf("group '%s' does not exist", id)
		}
		delete(d.Groups, id)
		for _, u := range d.Users {
			u.Groups = slices.DeleteFunc(u.Groups, func(g string) bool { return g == id })
		}
		*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.Kind == "group" && a.ID == id })
		return nil
	})
}
