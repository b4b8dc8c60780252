// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
)

// members lists the users of a group.
func members(d *access.Data, group string) []string {
	out := []string{}
	for _, id := range slices.Sorted(maps.Keys(d.Users)) {
		if slices.Contains(d.Users[id].Groups, group) {
			out = append(out, id)
		}
	}
	return out
}

func (e *Engine) getUserGroups(_ context.Context, r *Request) (Response, error) {
	all := e.Access.HasAny(r.Who, "/access/groups", "User.Modify", "Group.Allocate", "Sys.Audit")
	rows := []row{}
	e.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Groups)) {
			if !all {
				continue
			}
			out := row{"groupid": id, "users": strings.Join(members(d, id), ",")}
			if c := d.Groups[id]; c != "" {
				out["comment"] = c
			}
			rows = append(rows, out)
		}
	})
	return Response{Data: rows}, nil
}

func (e *Engine) getUserGroup(_ context.Context, r *Request) (Response, error) {
	id := r.Params.Values["groupid"]
	var out row
	e.Access.View(func(d *access.Data) {
		if c, ok := d.Groups[id]; ok {
			out = row{"members": members(d, id)}
			if c != "" {
				out["comment"] = c
			}
		}
	})
	if out == nil {
		return Response{}, failf("group '%s' does not exist", id)
	}
	return Response{Data: out}, nil
}

func (e *Engine) postUserGroup(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["groupid"]
	return e.userConfig(ctx, "create group", func(d *access.Data) error {
		if _, exists := d.Groups[id]; exists {
			return fmt.Errorf("group '%s' already exists", id)
		}
		d.Groups[id] = r.Params.Values["comment"]
		return nil
	})
}

func (e *Engine) putUserGroup(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["groupid"]
	return e.userConfig(ctx, "update group", func(d *access.Data) error {
		if _, exists := d.Groups[id]; !exists {
			return fmt.Errorf("group '%s' does not exist", id)
		}
		d.Groups[id] = r.Params.Values["comment"]
		return nil
	})
}

func (e *Engine) deleteUserGroup(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["groupid"]
	return e.userConfig(ctx, "delete group", func(d *access.Data) error {
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

// putPassword changes a password; everybody may change their own.
func (e *Engine) putPassword(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["userid"]
	return e.userConfig(ctx, "password change", func(d *access.Data) error {
		if d.Users[id] == nil {
			return fmt.Errorf("no such user ('%s')", id)
		}
		d.Users[id].Password = r.Params.Values["password"]
		return nil
	})
}
