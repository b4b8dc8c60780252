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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func userRow(u *access.User) api.Row {
	_, realm, _ := strings.Cut(u.ID, "@")
	out := api.Row{"userid": u.ID, "enable": api.BoolInt(!u.Disabled), "expire": u.Expire, "email": u.Email, "realm-type": realm}
	for k, v := range map[string]string{"comment": u.Comment, "firstname": u.First, "lastname": u.Last} {
		api.SetNonEmpty(out, k, v)
	}
	return out
}

// listUsers lists all users for auditors, and only the caller for others.
func listUsers(r *api.Request, d *access.Data, all bool) []api.Row {
	rows := []api.Row{}
	for _, id := range slices.Sorted(maps.Keys(d.Users)) {
		if all || id == r.Who.User {
			rows = append(rows, userRow(d.Users[id]))
		}
	}
	return rows
}

// findUser returns the user in a request.
func findUser(r *api.Request, d *access.Data) (*access.User, error) {
	id := r.Params.Values["userid"]
	if d.Users[id] == nil {
		return nil, api.Failf("no such user ('%s')", id)
	}
	return d.Users[id], nil
}

func getUser(r *api.Request, d *access.Data) (any, error) {
	u, err := findUser(r, d)
	if err != nil {
		return nil, err
	}
	out := userRow(u)
	delete(out, "userid")
	delete(out, "realm-type")
	tokens := api.Row{}
	for id, t := range u.Tokens {
		tokens[id] = tokenRow(t)
	}
	out["groups"], out["tokens"] = append([]string{}, u.Groups...), tokens
	return out, nil
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

func postUser(r *api.Request, d *access.Data) error {
	id := r.Params.Values["userid"]
	if d.Users[id] != nil {
		return fmt.Errorf("user '%s' already exists", id)
	}
	d.Users[id] = &access.User{ID: id, Tokens: map[string]*access.Token{}}
	setUserFields(r, d.Users[id])
	return nil
}

func putUser(r *api.Request, d *access.Data) error {
	u, err := findUser(r, d)
	if err == nil {
		setUserFields(r, u)
	}
	return err
}

func deleteUser(r *api.Request, d *access.Data) error {
	id := r.Params.Values["userid"]
	if d.Users[id] == nil {
		return fmt.Errorf("user '%s' does not exist", id)
	}
	delete(d.Users, id)
	*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.ID == id || strings.HasPrefix(a.ID, id+"!") })
	return nil
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

func listGroups(_ *api.Request, d *access.Data, all bool) []api.Row {
	rows := []api.Row{}
	if !all {
		return rows
	}
	for _, id := range slices.Sorted(maps.Keys(d.Groups)) {
		out := api.Row{"groupid": id, "users": strings.Join(groupMembers(d, id), ",")}
		api.SetNonEmpty(out, "comment", d.Groups[id])
		rows = append(rows, out)
	}
	return rows
}

// findGroup returns the ID of the group in a request. It fails if the group does not exist.
func findGroup(r *api.Request, d *access.Data) (id string, err error) {
	id = r.Params.Values["groupid"]
	if _, ok := d.Groups[id]; !ok {
		return "", api.Failf("group '%s' does not exist", id)
	}
	return id, nil
}

func getGroup(r *api.Request, d *access.Data) (any, error) {
	id, err := findGroup(r, d)
	if err != nil {
		return nil, err
	}
	out := api.Row{"members": groupMembers(d, id)}
	api.SetNonEmpty(out, "comment", d.Groups[id])
	return out, nil
}

func postGroup(r *api.Request, d *access.Data) error {
	id := r.Params.Values["groupid"]
	if _, exists := d.Groups[id]; exists {
		return fmt.Errorf("group '%s' already exists", id)
	}
	d.Groups[id] = r.Params.Values["comment"]
	return nil
}

func putGroup(r *api.Request, d *access.Data) error {
	id, err := findGroup(r, d)
	if err == nil {
		d.Groups[id] = r.Params.Values["comment"]
	}
	return err
}

func deleteGroup(r *api.Request, d *access.Data) error {
	id, err := findGroup(r, d)
	if err != nil {
		return err
	}
	delete(d.Groups, id)
	for _, u := range d.Users {
		u.Groups = slices.DeleteFunc(u.Groups, func(g string) bool { return g == id })
	}
	*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.Kind == "group" && a.ID == id })
	return nil
}

// tokenHandlers serves the changes of API tokens.
type tokenHandlers struct{ k *kernel.Kernel }

func tokenRow(t *access.Token) api.Row {
	out := api.Row{"privsep": api.BoolInt(t.Privsep), "expire": t.Expire}
	api.SetNonEmpty(out, "comment", t.Comment)
	return out
}

func getTokens(r *api.Request, d *access.Data) (any, error) {
	rows := []api.Row{}
	u := d.Users[r.Params.Values["userid"]]
	if u == nil {
		return rows, nil
	}
	for _, id := range slices.Sorted(maps.Keys(u.Tokens)) {
		out := tokenRow(u.Tokens[id])
		out["tokenid"] = id
		rows = append(rows, out)
	}
	return rows, nil
}

func getToken(r *api.Request, d *access.Data) (any, error) {
	userid, tokenid := r.Params.Values["userid"], r.Params.Values["tokenid"]
	if u := d.Users[userid]; u != nil && u.Tokens[tokenid] != nil {
		return tokenRow(u.Tokens[tokenid]), nil
	}
	return nil, api.Failf("no such token '%s' for user '%s'", tokenid, userid)
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
	resp, err := th.k.ChangeUserConfig(ctx, r, "generating token", func(d *access.Data) error {
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
	api.SetNonEmpty(info, "comment", t.Comment)
	return api.Response{Data: api.Row{"full-tokenid": userid + "!" + tokenid, "value": t.Secret, "info": info}}, nil
}

func (th *tokenHandlers) putToken(ctx context.Context, r *api.Request) (api.Response, error) {
	if _, err := view(th.k, getToken)(ctx, r); err != nil {
		return api.Response{}, err
	}
	_, err := th.k.ChangeUserConfig(ctx, r, "updating token info", func(d *access.Data) error {
		setTokenFields(r, d.Users[r.Params.Values["userid"]].Tokens[r.Params.Values["tokenid"]])
		return nil
	})
	if err != nil {
		return api.Response{}, err
	}
	return view(th.k, getToken)(ctx, r)
}

func (th *tokenHandlers) deleteToken(ctx context.Context, r *api.Request) (api.Response, error) {
	if _, err := view(th.k, getToken)(ctx, r); err != nil {
		return api.Response{}, err
	}
	userid, tokenid := r.Params.Values["userid"], r.Params.Values["tokenid"]
	return th.k.ChangeUserConfig(ctx, r, "deleting token", func(d *access.Data) error {
		delete(d.Users[userid].Tokens, tokenid)
		*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.Kind == "token" && a.ID == userid+"!"+tokenid })
		return nil
	})
}
