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

func userRow(u *access.User) api.Row {
	_, realm, _ := strings.Cut(u.ID, "@")
	out := api.Row{"userid": u.ID, "enable": api.BoolInt(!u.Disabled), "expire": u.Expire, "email": u.Email, "realm-type": realm}
	for k, v := range map[string]string{"comment": u.Comment, "firstname": u.First, "lastname": u.Last} {
		if v != "" {
			out[k] = v
		}
	}
	return out
}

// getUsers lists all users for auditors, and only the caller for others.
func (uh *userHandlers) getUsers(_ context.Context, r *api.Request) (api.Response, error) {
	all := uh.k.Access.HasAny(r.Who, "/access/groups", "User.Modify", "Sys.Audit")
	rows := []api.Row{}
	uh.k.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Users)) {
			if all || id == r.Who.User {
				rows = append(rows, userRow(d.Users[id]))
			}
		}
	})
	return api.Response{Data: rows}, nil
}

func (uh *userHandlers) getUser(_ context.Context, r *api.Request) (api.Response, error) {
	var out api.Row
	uh.k.Access.View(func(d *access.Data) {
		u := d.Users[r.Params.Values["userid"]]
		if u == nil {
			return
		}
		out = userRow(u)
		delete(out, "userid")
		delete(out, "realm-type")
		out["groups"] = append([]string{}, u.Groups...)
		tokens := api.Row{}
		for id, t := range u.Tokens {
			tokens[id] = tokenRow(t)
		}
		out["tokens"] = tokens
	})
	if out == nil {
		return api.Response{}, api.Failf("no such user ('%s')", r.Params.Values["userid"])
	}
	return api.Response{Data: out}, nil
}

func setUserFields(r *api.Request, u *access.User) {
	for param, field := range map[string]*string{
		"comment": &u.Comment, "email": &u.Email, "firstname": &u.First, "lastname": &u.Last, "password": &u.Password,
	} {
		if v, ok := r.Value(param); ok {
			*field = v
		}
	}
	if _, ok := r.Value("enable"); ok {
		u.Disabled = !r.Bool("enable")
	}
	u.Expire = int64(r.Int("expire", int(u.Expire)))
	if g, ok := r.Value("groups"); ok {
		u.Groups = schema.SplitList(g)
	}
}

func (uh *userHandlers) postUser(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["userid"]
	return uh.k.ChangeUserConfig(ctx, "create user", func(d *access.Data) error {
		if d.Users[id] != nil {
			return fmt.Errorf("user '%s' already exists", id)
		}
		u := &access.User{ID: id, Tokens: map[string]*access.Token{}}
		setUserFields(r, u)
		d.Users[id] = u
		return nil
	})
}

func (uh *userHandlers) putUser(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["userid"]
	return uh.k.ChangeUserConfig(ctx, "update user", func(d *access.Data) error {
		if d.Users[id] == nil {
			return fmt.Errorf("no such user ('%s')", id)
		}
		setUserFields(r, d.Users[id])
		return nil
	})
}

func (uh *userHandlers) deleteUser(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["userid"]
	return uh.k.ChangeUserConfig(ctx, "delete user", func(d *access.Data) error {
		if d.Users[id] == nil {
			return fmt.Errorf("user '%s' does not exist", id)
		}
		delete(d.Users, id)
		*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.ID == id || strings.HasPrefix(a.ID, id+"!") })
		return nil
	})
}
