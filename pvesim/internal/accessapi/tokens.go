// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package accessapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

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
