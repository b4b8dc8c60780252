// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func tokenRow(t *access.Token) row {
	out := row{"privsep": boolInt(t.Privsep), "expire": t.Expire}
	if t.Comment != "" {
		out["comment"] = t.Comment
	}
	return out
}

func (e *Engine) withToken(r *Request, f func(t *access.Token)) error {
	err := failf("no such token '%s' for user '%s'", r.Params.Values["tokenid"], r.Params.Values["userid"])
	e.Access.View(func(d *access.Data) {
		if u := d.Users[r.Params.Values["userid"]]; u != nil && u.Tokens[r.Params.Values["tokenid"]] != nil {
			f(u.Tokens[r.Params.Values["tokenid"]])
			err = nil
		}
	})
	return err
}

func (e *Engine) getTokens(_ context.Context, r *Request) (Response, error) {
	rows := []row{}
	e.Access.View(func(d *access.Data) {
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
	return Response{Data: rows}, nil
}

func (e *Engine) getToken(_ context.Context, r *Request) (Response, error) {
	var out row
	err := e.withToken(r, func(t *access.Token) { out = tokenRow(t) })
	return Response{Data: out}, err
}

func fillToken(r *Request, t *access.Token) {
	if v, ok := r.value("comment"); ok {
		t.Comment = v
	}
	if _, ok := r.value("privsep"); ok {
		t.Privsep = r.on("privsep")
	}
	t.Expire = int64(r.integer("expire", int(t.Expire)))
}

func (e *Engine) postToken(ctx context.Context, r *Request) (Response, error) {
	userid, tokenid := r.Params.Values["userid"], r.Params.Values["tokenid"]
	t := &access.Token{ID: tokenid, Secret: uuid.NewString(), Privsep: true}
	fillToken(r, t)
	resp, err := e.userConfig(ctx, "generating token", func(d *access.Data) error {
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
	info := row{"privsep": strconv.Itoa(boolInt(t.Privsep))}
	if t.Expire != 0 {
		info["expire"] = strconv.FormatInt(t.Expire, 10)
	}
	if t.Comment != "" {
		info["comment"] = t.Comment
	}
	return Response{Data: row{"full-tokenid": userid + "!" + tokenid, "value": t.Secret, "info": info}}, nil
}

func (e *Engine) putToken(ctx context.Context, r *Request) (Response, error) {
	if err := e.withToken(r, func(*access.Token) {}); err != nil {
		return Response{}, err
	}
	_, err := e.userConfig(ctx, "updating token info", func(d *access.Data) error {
		fillToken(r, d.Users[r.Params.Values["userid"]].Tokens[r.Params.Values["tokenid"]])
		return nil
	})
	if err != nil {
		return Response{}, err
	}
	return e.getToken(ctx, r)
}

func (e *Engine) deleteToken(ctx context.Context, r *Request) (Response, error) {
	if err := e.withToken(r, func(*access.Token) {}); err != nil {
		return Response{}, err
	}
	userid, tokenid := r.Params.Values["userid"], r.Params.Values["tokenid"]
	return e.userConfig(ctx, "deleting token", func(d *access.Data) error {
		delete(d.Users[userid].Tokens, tokenid)
		*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.Kind == "token" && a.ID == userid+"!"+tokenid })
		return nil
	})
}

func (e *Engine) getACL(_ context.Context, r *Request) (Response, error) {
	all := e.Access.HasAny(r.Who, "/access", "Sys.Audit", "Permissions.Modify")
	rows := []row{}
	e.Access.View(func(d *access.Data) {
		for _, a := range *d.ACL {
			if all {
				rows = append(rows, row{"path": a.Path, "type": a.Kind, "ugid": a.ID, "roleid": a.Role, "propagate": boolInt(a.Propagate)})
			}
		}
	})
	return Response{Data: rows}, nil
}

func (e *Engine) putACL(ctx context.Context, r *Request) (Response, error) {
	kinds := map[string]string{"users": "user", "groups": "group", "tokens": "token"}
	if r.Params.Values["users"]+r.Params.Values["groups"]+r.Params.Values["tokens"] == "" {
		return Response{}, paramError(map[string]string{
			"users": "either 'users', 'groups' or 'tokens' is required.", "groups": "either 'users', 'groups' or 'tokens' is required.",
			"tokens": "either 'users', 'groups' or 'tokens' is required.",
		})
	}
	path := r.Params.Values["path"]
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
	}
	propagate := r.Params.Values["propagate"] != "0"
	return e.userConfig(ctx, "ACL update", func(d *access.Data) error {
		for _, role := range schema.SplitList(r.Params.Values["roles"]) {
			if d.Roles[role] == nil {
				return fmt.Errorf("role '%s' does not exist", role)
			}
			for param, kind := range kinds {
				for _, id := range schema.SplitList(r.Params.Values[param]) {
					if err := subjectExists(d, kind, id); err != nil {
						return err
					}
					entry := access.Entry{Path: path, Kind: kind, ID: id, Role: role, Propagate: propagate}
					if r.on("delete") {
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

func subjectExists(d *access.Data, kind, id string) error {
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

func (e *Engine) getDomains(context.Context, *Request) (Response, error) {
	return Response{Data: []row{
		{"realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication"},
		{"realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server"},
	}}, nil
}
