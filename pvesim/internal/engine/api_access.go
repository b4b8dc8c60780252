// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

func flags(perms map[string]bool) row {
	out := row{}
	for p, propagate := range perms {
		out[p] = boolInt(propagate)
	}
	return out
}

func (e *Engine) getPermissions(_ context.Context, r *Request) (Response, error) {
	who := r.Who
	if id, ok := r.value("userid"); ok {
		user, token, _ := strings.Cut(id, "!")
		other := access.Identity{User: user, Token: token}
		own := other == r.Who || (r.Who.Token == "" && user == r.Who.User)
		if !own {
			if err := e.need(r, "/access", "Sys.Audit"); err != nil {
				return Response{}, err
			}
		}
		who = other
	}
	out := row{}
	if path, ok := r.value("path"); ok {
		if perms := e.Access.Permissions(who, path); len(perms) > 0 {
			out[path] = flags(perms)
		}
		return Response{Data: out}, nil
	}
	for path, perms := range e.Access.Effective(who) {
		out[path] = flags(perms)
	}
	return Response{Data: out}, nil
}

// postTicket is the login. Its failure carries a body, unlike all other 401s.
func (e *Engine) postTicket(ctx context.Context, r *Request) (Response, error) {
	user := r.Params.Values["username"]
	if !strings.Contains(user, "@") {
		user += "@" + cmp.Or(r.Params.Values["realm"], "pam")
	}
	now := e.Clock.Now()
	password := r.Params.Values["password"]
	err := e.Access.CheckPassword(user, password, now)
	if renewed, terr := e.Signer.User(password, now); terr == nil && renewed == user && e.Access.Active(user, now) {
		err = nil
	}
	if err != nil {
		if err := e.Clock.Sleep(ctx, AuthDelay); err != nil {
			return Response{}, err
		}
		return Response{}, &Error{Status: http.StatusUnauthorized, Message: err.Error()}
	}
	ticket, csrf := e.Signer.Ticket(user, now)
	out := row{"username": user, "ticket": ticket, "CSRFPreventionToken": csrf, "cap": e.capabilities(access.Identity{User: user})}
	if e.name != "" {
		out["clustername"] = e.name
	}
	return Response{Data: out}, nil
}

// AuthDelay slows down guessing: every failed login takes this long.
const AuthDelay = 3 * time.Second

// capabilities is the summary of rights by which the web interface hides what the user cannot do.
func (e *Engine) capabilities(who access.Identity) row {
	out := row{}
	for _, area := range areas {
		perms := row{}
		for p := range e.Access.Permissions(who, area.path) {
			if slices.ContainsFunc(area.privileges, func(x string) bool { return strings.HasPrefix(p, x) }) {
				perms[p] = 1
			}
		}
		out[area.name] = perms
	}
	return out
}

// areas of the web interface and the privileges that count there.
var areas = []struct {
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

func (e *Engine) getRoles(context.Context, *Request) (Response, error) {
	rows := []row{}
	e.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Roles)) {
			role := d.Roles[id]
			rows = append(rows, row{"roleid": id, "privs": strings.Join(slices.Sorted(slices.Values(role.Privileges)), ","), "special": boolInt(role.Special)})
		}
	})
	return Response{Data: rows}, nil
}

func (e *Engine) getRole(_ context.Context, r *Request) (Response, error) {
	out := row{}
	found := false
	e.Access.View(func(d *access.Data) {
		if role := d.Roles[r.Params.Values["roleid"]]; role != nil {
			found = true
			for _, p := range role.Privileges {
				out[p] = 1
			}
		}
	})
	if !found {
		return Response{}, failf("role '%s' does not exist", r.Params.Values["roleid"])
	}
	return Response{Data: out}, nil
}

// userConfig changes user.cfg under its cluster-wide lock.
func (e *Engine) userConfig(ctx context.Context, what string, change func(d *access.Data) error) (Response, error) {
	if err := e.clusterLockQuorum(ctx, "file-user_cfg"); err != nil {
		return Response{}, failf("%s failed: %v", what, err)
	}
	release, err := e.Locks.Cluster(ctx, "file-user_cfg", 10*time.Second)
	if err != nil {
		return Response{}, failf("%s failed: %v", what, err)
	}
	defer release()
	if err := e.Access.Update(change); err != nil {
		return Response{}, failf("%s failed: %v", what, err)
	}
	return Response{}, nil
}

func (e *Engine) postRole(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["roleid"]
	return e.userConfig(ctx, "create role", func(d *access.Data) error {
		if d.Roles[id] != nil {
			return fmt.Errorf("role '%s' already exists", id)
		}
		d.Roles[id] = &access.Role{Privileges: schema.SplitList(r.Params.Values["privs"])}
		return nil
	})
}

func (e *Engine) putRole(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["roleid"]
	return e.userConfig(ctx, "update role", func(d *access.Data) error {
		role := d.Roles[id]
		switch {
		case role == nil:
			return fmt.Errorf("role '%s' does not exist", id)
		case role.Special:
			return fmt.Errorf("auto-generated role '%s' cannot be modified", id)
		}
		privs := schema.SplitList(r.Params.Values["privs"])
		if r.on("append") {
			privs = append(privs, role.Privileges...)
		}
		role.Privileges = slices.Compact(slices.Sorted(slices.Values(privs)))
		return nil
	})
}

func (e *Engine) deleteRole(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["roleid"]
	return e.userConfig(ctx, "delete role", func(d *access.Data) error {
		role := d.Roles[id]
		switch {
		case role == nil:
			return fmt.Errorf("role '%s' does not exist", id)
		case role.Special:
			return fmt.Errorf("auto-generated role '%s' cannot be deleted", id)
		}
		delete(d.Roles, id)
		return nil
	})
}

func userRow(u *access.User) row {
	_, realm, _ := strings.Cut(u.ID, "@")
	out := row{"userid": u.ID, "enable": boolInt(!u.Disabled), "expire": u.Expire, "email": u.Email, "realm-type": realm}
	for k, v := range map[string]string{"comment": u.Comment, "firstname": u.First, "lastname": u.Last} {
		if v != "" {
			out[k] = v
		}
	}
	return out
}

// getUsers shows all users to auditors, and everybody itself.
func (e *Engine) getUsers(_ context.Context, r *Request) (Response, error) {
	all := e.Access.HasAny(r.Who, "/access/groups", "User.Modify", "Sys.Audit")
	rows := []row{}
	e.Access.View(func(d *access.Data) {
		for _, id := range slices.Sorted(maps.Keys(d.Users)) {
			if all || id == r.Who.User {
				rows = append(rows, userRow(d.Users[id]))
			}
		}
	})
	return Response{Data: rows}, nil
}

func (e *Engine) getUser(_ context.Context, r *Request) (Response, error) {
	var out row
	e.Access.View(func(d *access.Data) {
		u := d.Users[r.Params.Values["userid"]]
		if u == nil {
			return
		}
		out = userRow(u)
		delete(out, "userid")
		delete(out, "realm-type")
		out["groups"] = append([]string{}, u.Groups...)
		tokens := row{}
		for id, t := range u.Tokens {
			tokens[id] = tokenRow(t)
		}
		out["tokens"] = tokens
	})
	if out == nil {
		return Response{}, failf("no such user ('%s')", r.Params.Values["userid"])
	}
	return Response{Data: out}, nil
}

func fillUser(r *Request, u *access.User) {
	for param, field := range map[string]*string{
		"comment": &u.Comment, "email": &u.Email, "firstname": &u.First, "lastname": &u.Last, "password": &u.Password,
	} {
		if v, ok := r.value(param); ok {
			*field = v
		}
	}
	if _, ok := r.value("enable"); ok {
		u.Disabled = !r.on("enable")
	}
	u.Expire = int64(r.integer("expire", int(u.Expire)))
	if g, ok := r.value("groups"); ok {
		u.Groups = schema.SplitList(g)
	}
}

func (e *Engine) postUser(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["userid"]
	return e.userConfig(ctx, "create user", func(d *access.Data) error {
		if d.Users[id] != nil {
			return fmt.Errorf("user '%s' already exists", id)
		}
		u := &access.User{ID: id, Tokens: map[string]*access.Token{}}
		fillUser(r, u)
		d.Users[id] = u
		return nil
	})
}

func (e *Engine) putUser(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["userid"]
	return e.userConfig(ctx, "update user", func(d *access.Data) error {
		if d.Users[id] == nil {
			return fmt.Errorf("no such user ('%s')", id)
		}
		fillUser(r, d.Users[id])
		return nil
	})
}

func (e *Engine) deleteUser(ctx context.Context, r *Request) (Response, error) {
	id := r.Params.Values["userid"]
	return e.userConfig(ctx, "delete user", func(d *access.Data) error {
		if d.Users[id] == nil {
			return fmt.Errorf("user '%s' does not exist", id)
		}
		delete(d.Users, id)
		*d.ACL = slices.DeleteFunc(*d.ACL, func(a access.Entry) bool { return a.ID == id || strings.HasPrefix(a.ID, id+"!") })
		return nil
	})
}
