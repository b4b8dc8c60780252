// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package accessapi serves users, groups, roles, tokens, permissions and logins.
package accessapi

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// Routes returns the handlers of the access API by method.
func Routes(k *kernel.Kernel) map[string]api.Handler {
	lh, th := loginHandlers{k}, tokenHandlers{k}
	return map[string]api.Handler{
		"GET /access/permissions":                       lh.getPermissions,
		"GET /access/roles":                             view(k, getRoles),
		"POST /access/roles":                            change(k, "create role", postRole),
		"GET /access/roles/{roleid}":                    view(k, getRole),
		"PUT /access/roles/{roleid}":                    change(k, "update role", putRole),
		"DELETE /access/roles/{roleid}":                 change(k, "delete role", deleteRole),
		"POST /access/ticket":                           lh.postTicket,
		"GET /access/users":                             list(k, listUsers, "/access/groups", "User.Modify", "Sys.Audit"),
		"POST /access/users":                            change(k, "create user", postUser),
		"GET /access/users/{userid}":                    view(k, getUser),
		"PUT /access/users/{userid}":                    change(k, "update user", putUser),
		"DELETE /access/users/{userid}":                 change(k, "delete user", deleteUser),
		"GET /access/users/{userid}/token":              view(k, getTokens),
		"GET /access/users/{userid}/token/{tokenid}":    view(k, getToken),
		"POST /access/users/{userid}/token/{tokenid}":   th.postToken,
		"PUT /access/users/{userid}/token/{tokenid}":    th.putToken,
		"DELETE /access/users/{userid}/token/{tokenid}": th.deleteToken,
		"GET /access/acl":                               list(k, listACL, "/access", "Sys.Audit", "Permissions.Modify"),
		"PUT /access/acl":                               putACL(k),
		"GET /access/domains":                           api.Static(domains),
		"GET /access/groups":                            list(k, listGroups, "/access/groups", "User.Modify", "Group.Allocate", "Sys.Audit"),
		"POST /access/groups":                           change(k, "create group", postGroup),
		"GET /access/groups/{groupid}":                  view(k, getGroup),
		"PUT /access/groups/{groupid}":                  change(k, "update group", putGroup),
		"DELETE /access/groups/{groupid}":               change(k, "delete group", deleteGroup),
		"PUT /access/password":                          change(k, "password change", putPassword),
		"GET /access":                                   api.Index("subdir", "users", "groups", "roles", "acl", "domains", "ticket", "permissions"),
	}
}

// view returns a handler that responds with a part of user.cfg.
func view(k *kernel.Kernel, read func(r *api.Request, d *access.Data) (any, error)) api.Handler {
	return func(_ context.Context, r *api.Request) (resp api.Response, err error) {
		k.Access.View(func(d *access.Data) { resp.Data, err = read(r, d) })
		return resp, err
	}
}

// list returns the handler of a list. It is complete for callers with one of the privileges on a path.
func list(k *kernel.Kernel, read func(r *api.Request, d *access.Data, all bool) []api.Row, path string, privs ...string) api.Handler {
	return func(ctx context.Context, r *api.Request) (api.Response, error) {
		all := k.Access.HasAny(r.Who, path, privs...)
		return view(k, func(r *api.Request, d *access.Data) (any, error) { return read(r, d, all), nil })(ctx, r)
	}
}

// change returns the handler of a change to user.cfg. Errors start with what.
func change(k *kernel.Kernel, what string, update func(r *api.Request, d *access.Data) error) api.Handler {
	return func(ctx context.Context, r *api.Request) (api.Response, error) {
		return k.ChangeUserConfig(ctx, r, what, func(d *access.Data) error { return update(r, d) })
	}
}

// loginHandlers serves logins and the permissions of callers.
type loginHandlers struct{ k *kernel.Kernel }

func (lh *loginHandlers) getPermissions(_ context.Context, r *api.Request) (api.Response, error) {
	who := r.Who
	if id, ok := r.Value("userid"); ok {
		user, token, _ := strings.Cut(id, "!")
		who = access.Identity{User: user, Token: token}
		own := who == r.Who || (r.Who.Token == "" && user == r.Who.User)
		if err := lh.k.Require(r, "/access", "Sys.Audit"); err != nil && !own {
			return api.Response{}, err
		}
	}
	out := api.Row{}
	if path, ok := r.Value("path"); ok {
		out[path] = permissionRow(lh.k.Access.Permissions(who, path)) // also without privileges
		return api.Response{Data: out}, nil
	}
	for path, perms := range lh.k.Access.Effective(who) {
		out[path] = permissionRow(perms)
	}
	return api.Response{Data: out}, nil
}

func permissionRow(perms map[string]bool) api.Row {
	out := api.Row{}
	for p, propagate := range perms {
		out[p] = api.BoolInt(propagate)
	}
	return out
}

// postTicket serves the login. Unlike other responses with status 401, its failure has a body.
func (lh *loginHandlers) postTicket(ctx context.Context, r *api.Request) (api.Response, error) {
	user := r.Params.Values["username"]
	if !strings.Contains(user, "@") {
		user += "@" + cmp.Or(r.Params.Values["realm"], "pam")
	}
	now := lh.k.Clock.Now()
	password := r.Params.Values["password"]
	err := lh.k.Access.CheckPassword(user, password, now)
	if renewed, terr := lh.k.Signer.User(password, now); terr == nil && renewed == user && lh.k.Access.IsActive(user, now) {
		err = nil
	}
	if err != nil {
		if err := lh.k.Clock.Sleep(ctx, access.AuthDelay); err != nil {
			return api.Response{}, err
		}
		return api.Response{}, &api.Error{Status: http.StatusUnauthorized, Message: err.Error()}
	}
	ticket, csrf := lh.k.Signer.Ticket(user, now)
	out := api.Row{"username": user, "ticket": ticket, "CSRFPreventionToken": csrf, "cap": lh.capabilities(access.Identity{User: user})}
	api.SetNonEmpty(out, "clustername", lh.k.Name)
	return api.Response{Data: out}, nil
}

// capabilities returns the summary of permissions by which the web interface hides actions.
func (lh *loginHandlers) capabilities(who access.Identity) api.Row {
	out := api.Row{}
	for _, area := range webAreas {
		perms := api.Row{}
		for p := range lh.k.Access.Permissions(who, area.path) {
			if slices.ContainsFunc(area.privileges, func(x string) bool { return strings.HasPrefix(p, x) }) {
				perms[p] = 1
			}
		}
		out[area.name] = perms
	}
	return out
}

// webAreas are the areas of the web interface and the privileges shown for each.
var webAreas = []struct {
	name, path string
	privileges []string
}{
	{"vms", "/vms", []string{"VM.", "Permissions.Modify"}},
	{"storage", "/storage", []string{"Datastore.", "Permissions.Modify"}},
	{"access", "/access", []string{"User.", "Group.", "Permissions.Modify"}},
	{"nodes", "/nodes", []string{"Sys.", "Permissions.Modify"}},
	{"sdn", "/sdn", []string{"SDN.", "Permissions.Modify"}},
	{"mapping", "/mapping", []string{"Mapping.", "Permissions.Modify"}},
	{"dc", "/", []string{"Sys.Audit", "Sys.Modify", "SDN."}},
}

// putPassword changes a password. Users can change their own.
func putPassword(r *api.Request, d *access.Data) error {
	u, err := findUser(r, d)
	if err == nil {
		u.Password = r.Params.Values["password"]
	}
	return err
}

var domains = []api.Row{
	{"realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication"},
	{"realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server"},
}

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
