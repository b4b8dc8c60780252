// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package accessapi serves users, groups, roles, tokens, permissions and logins.
package accessapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// Handlers by kind of object.
type (
	loginHandlers struct{ k *kernel.Kernel }
	roleHandlers  struct{ k *kernel.Kernel }
	userHandlers  struct{ k *kernel.Kernel }
	groupHandlers struct{ k *kernel.Kernel }
	tokenHandlers struct{ k *kernel.Kernel }
	aclHandlers   struct{ k *kernel.Kernel }
)

// Routes returns the handlers of the access API by method.
func Routes(k *kernel.Kernel) map[string]api.Handler {
	lh, rh, uh := loginHandlers{k}, roleHandlers{k}, userHandlers{k}
	gh, th, ah := groupHandlers{k}, tokenHandlers{k}, aclHandlers{k}
	return map[string]api.Handler{
		"GET /access/permissions":                       lh.getPermissions,
		"GET /access/roles":                             rh.getRoles,
		"POST /access/roles":                            rh.postRole,
		"GET /access/roles/{roleid}":                    rh.getRole,
		"PUT /access/roles/{roleid}":                    rh.putRole,
		"DELETE /access/roles/{roleid}":                 rh.deleteRole,
		"POST /access/ticket":                           lh.postTicket,
		"GET /access/users":                             uh.getUsers,
		"POST /access/users":                            uh.postUser,
		"GET /access/users/{userid}":                    uh.getUser,
		"PUT /access/users/{userid}":                    uh.putUser,
		"DELETE /access/users/{userid}":                 uh.deleteUser,
		"GET /access/users/{userid}/token":              th.getTokens,
		"GET /access/users/{userid}/token/{tokenid}":    th.getToken,
		"POST /access/users/{userid}/token/{tokenid}":   th.postToken,
		"PUT /access/users/{userid}/token/{tokenid}":    th.putToken,
		"DELETE /access/users/{userid}/token/{tokenid}": th.deleteToken,
		"GET /access/acl":                               ah.getACL,
		"PUT /access/acl":                               ah.putACL,
		"GET /access/domains":                           lh.getDomains,
		"GET /access/groups":                            gh.getGroups,
		"POST /access/groups":                           gh.postGroup,
		"GET /access/groups/{groupid}":                  gh.getGroup,
		"PUT /access/groups/{groupid}":                  gh.putGroup,
		"DELETE /access/groups/{groupid}":               gh.deleteGroup,
		"PUT /access/password":                          lh.putPassword,
		"GET /access":                                   api.Index("subdir", "users", "groups", "roles", "acl", "domains", "ticket", "permissions"),
	}
}

func (lh *loginHandlers) getPermissions(_ context.Context, r *api.Request) (api.Response, error) {
	who := r.Who
	if id, ok := r.Value("userid"); ok {
		user, token, _ := strings.Cut(id, "!")
		other := access.Identity{User: user, Token: token}
		own := other == r.Who || (r.Who.Token == "" && user == r.Who.User)
		if !own {
			if err := lh.k.Require(r, "/access", "Sys.Audit"); err != nil {
				return api.Response{}, err
			}
		}
		who = other
	}
	out := api.Row{}
	if path, ok := r.Value("path"); ok {
		if perms := lh.k.Access.Permissions(who, path); len(perms) > 0 {
			out[path] = permissionRow(perms)
		}
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
	if lh.k.Name != "" {
		out["clustername"] = lh.k.Name
	}
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
func (lh *loginHandlers) putPassword(ctx context.Context, r *api.Request) (api.Response, error) {
	id := r.Params.Values["userid"]
	return lh.k.ChangeUserConfig(ctx, "password change", func(d *access.Data) error {
		if d.Users[id] == nil {
			return fmt.Errorf("no such user ('%s')", id)
		}
		d.Users[id].Password = r.Params.Values["password"]
		return nil
	})
}

func (lh *loginHandlers) getDomains(context.Context, *api.Request) (api.Response, error) {
	return api.Response{Data: []api.Row{
		{"realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication"},
		{"realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server"},
	}}, nil
}
