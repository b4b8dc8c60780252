// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package accessapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

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

func tokenRow(t *access.Token) api.Row {
	out := api.Row{"privsep": api.BoolInt(t.Privsep), "expire": t.Expire}
	if t.Comment != "" {
		out["comment"] = t.Comment
	}
	return out
}

func (th *tokenHandlers) viewToken(r *api.Request, f func(t *access.Token)) error {
	err := api.Failf("no such token '%s' for user '%s'", r.Params.Values["tokenid"], r.Params.Values["userid"])
	th.k.Access.View(func(d *access.Data) {
		if u := d.Users[r.Params.Values["userid"]]; u != nil && u.Tokens[r.Params.Values["tokenid"]] != nil {
			f(u.Tokens[r.Params.Values["tokenid"]])
			err = nil
		}
	})
	return err
}

func (th *tokenHandlers) getTokens(_ context.Context, r *api.Request) (api.Response, error) {
	rows := []api.Row{}
	th.k.Access.View(func(d *access.Data) {
		u := d.Users[r.Params.Values["userid"]]
		if u == nil {
			return
		}
		for _, id := range slices.Sorted(maps.Keys(u.Tokens)) {
			out := tokenRow(u.Tokens[id])
			out["tokenid"] = id
			rows = append(rows, out)
		}
	})
	return api.Response{Data: rows}, nil
}

func (th *tokenHandlers) getToken(_ context.Context, r *api.Request) (api.Response, error) {
	var out api.Row
	err := th.viewToken(r, func(t *access.Token) { out = tokenRow(t) })
	return api.Response{Data: out}, err
}

func setTokenFields(r *api.Request, t *access.Token) {
	if v, ok := r.Value("comment"); ok {
		t.Comment = v
	}
	if _, ok := r.Value("privsep"); ok {
		t.Privsep = r.Bool("privsep")
	}
	t.Expire = int64(r.Int("expire", int(t.Expire)))
}

func (th *tokenHandlers) postToken(ctx context.Context, r *api.Request) (api.Response, error) {
	userid, tokenid := r.Params.Values["userid"], r.Params.Values["tokenid"]
	t := &access.Token{ID: tokenid, Secret: uuid.NewString(), Privsep: true}
	setTokenFields(r, t)
	resp, err := th.k.ChangeUserConfig(ctx, "generating token", func(d *access.Data) error {
		u := d.Users[userid]
		switch {
		case u == nil:
			return fmt.Errorf("no such user ('%s')", userid)
		case u.Tokens[tokenid] != nil:
			return fmt.Errorf("Token already exists.") //nolint:revive,staticcheck // Proxmox's own text
		}
		u.Tokens[tokenid] = t
		return nil
	})
	if err != nil {
		return resp, err
	}
	info := api.Row{"privsep": strconv.Itoa(api.BoolInt(t.Privsep))}
	if t.Expire != 0 {
		info["expire"] = strconv.FormatInt(t.Expire, 10)
	}
	if t.Comment != "" {
		info["comment"] = t.Comment
	}
	return api.Response{Data: api.Row{"full-tokenid": userid + "!" + tokenid, "value": t.Secret, "info": info}}, nil
}

func (th *tokenHandlers) putToken(ctx context.Context, r *api.Request) (api.Response, error) {
	if err := th.viewToken(r, func(*access.Token) {}); err != nil {
		return api.Response{}, err
	}
	_, err := th.k.ChangeUserConfig(ctx, "updating token info", func(d *access.Data) error {
		setTokenFields(r, d.Users[r.Params.Values["userid"]].Tokens[r.Params.Values["tokenid"]])
		return nil
	})
	if err != nil {
		return api.Response{}, err
	}
	return th.getToken(ctx, r)
}

func (th *tokenHandlers) deleteToken(ctx context.Context, r *api.Request) (api.Response, error) {
	if err := th.viewToken(r, func(*access.Token) {}); err != nil {
		return api.Response{}, err
	}
	userid, tokenid := r.Params.Values["userid"], r.Params.Values["tokenid"]
	return th.k.ChangeUserConfig(ctx, "deleting token", func(d *access.Data) error {
		delete(d.Users[userid].Tokens, tokenid)
		*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.Kind == "token" && a.ID == userid+"!"+tokenid })
		return nil
	})
}
