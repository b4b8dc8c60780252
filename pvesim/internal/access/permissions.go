// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"slices"
	"strconv"
	"strings"
)

// Identity is the caller of a request: a user, or a token of a user.
type Identity struct {
	User  string
	Token string
}

func (i Identity) String() string {
	if i.Token == "" {
		return i.User
	}
	return i.User + "!" + i.Token
}

// IsRoot reports whether the identity passes checks for root@pam by name. Tokens never do.
func (i Identity) IsRoot() bool { return i.User == Root && i.Token == "" }

// Permissions returns the privileges of an identity on a path, and whether each propagates to the paths below.
func (s *Store) Permissions(id Identity, path string) map[string]bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.permissions(id, path)
}

func (s *Store) permissions(id Identity, path string) map[string]bool {
	user := s.users[id.User]
	if user == nil {
		return nil
	}
	own := s.ofUser(user, path)
	if id.Token == "" {
		return own
	}
	token := user.Tokens[id.Token]
	if token == nil {
		return nil
	}
	if !token.Privsep {
		return own
	}
	both := map[string]bool{}
	for priv, propagate := range s.privileges("token", id.String(), nil, path) {
		if userPropagates, ok := own[priv]; ok {
			both[priv] = propagate && userPropagates
		}
	}
	return both
}

func (s *Store) ofUser(u *User, path string) map[string]bool {
	if u.ID == Root {
		all := make(map[string]bool, len(s.all))
		for _, p := range s.all {
			all[p] = true
		}
		return all
	}
	return s.privileges("user", u.ID, u.Groups, path)
}

// rolesOn returns the roles on a path. Entries on a deeper level replace inherited ones; on one level, entries for the
// user replace those for its groups.
func (s *Store) rolesOn(kind, id string, groups []string, path string) map[string]bool {
	roles := map[string]bool{}
	for _, level := range levels(path) {
		own, group := map[string]bool{}, map[string]bool{}
		for _, e := range s.acl {
			if e.Path != level || (!e.Propagate && level != path) {
				continue
			}
			switch {
			case e.Kind == kind && e.ID == id:
				own[e.Role] = e.Propagate
			case e.Kind == "group" && slices.Contains(groups, e.ID):
				group[e.Role] = e.Propagate
			}
		}
		switch {
		case len(own) > 0:
			roles = own
		case len(group) > 0:
			roles = group
		}
	}
	if _, none := roles["NoAccess"]; none {
		return map[string]bool{"NoAccess": roles["NoAccess"]}
	}
	return roles
}

// levels returns a path and its ancestors, root first.
func levels(path string) []string {
	out := []string{"/"}
	at := ""
	for _, part := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		at += "/" + part
		out = append(out, at)
	}
	return out
}

// privileges returns the privileges of the roles on a path, plus those from the resource pools that contain its object.
func (s *Store) privileges(kind, id string, groups []string, path string) map[string]bool {
	out, roles := map[string]bool{}, s.rolesOn(kind, id, groups, path)
	s.addRoles(out, roles, true)
	if _, none := roles["NoAccess"]; none {
		return out
	}
	for name, pool := range s.pools {
		if !pool.contains(path) {
			continue
		}
		roles := s.rolesOn(kind, id, groups, "/pool/"+name)
		if _, none := roles["NoAccess"]; none {
			return map[string]bool{} // also cancels the roles on the path
		}
		s.addRoles(out, roles, false)
	}
	return out
}

func (s *Store) addRoles(into map[string]bool, roles map[string]bool, propagates bool) {
	for role, propagate := range roles {
		r := s.roles[role]
		if r == nil {
			continue
		}
		for _, p := range r.Privileges {
			into[p] = into[p] || (propagate && propagates)
		}
	}
}

func (p *Pool) contains(path string) bool {
	if id, ok := strings.CutPrefix(path, "/vms/"); ok {
		vmid, err := strconv.Atoi(id)
		return err == nil && p.VMs[vmid]
	}
	id, ok := strings.CutPrefix(path, "/storage/")
	return ok && p.Storages[id]
}

// Has reports whether the identity has a privilege on a path.
func (s *Store) Has(id Identity, path, privilege string) bool {
	_, ok := s.Permissions(id, path)[privilege]
	return ok
}

// HasAny reports whether the identity has at least one of the privileges on a path.
func (s *Store) HasAny(id Identity, path string, privileges ...string) bool {
	perms := s.Permissions(id, path)
	return slices.ContainsFunc(privileges, func(p string) bool { _, ok := perms[p]; return ok })
}

// Effective returns the permissions on each path that Proxmox reports by default, without empty ones.
func (s *Store) Effective(id Identity) map[string]map[string]bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	paths := exactPaths(s)
	for _, p := range []string{"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"} {
		paths[p] = true
	}
	out := map[string]map[string]bool{}
	for p := range paths {
		if perms := s.permissions(id, p); len(perms) > 0 {
			out[p] = perms
		}
	}
	return out
}

// exactPaths returns the paths with entries of their own: those in the ACL with their ancestors, and those of pool members.
func exactPaths(s *Store) map[string]bool {
	paths := map[string]bool{}
	for _, e := range s.acl {
		for _, level := range levels(e.Path) {
			paths[level] = true
		}
	}
	for _, pool := range s.pools {
		for vmid := range pool.VMs {
			paths["/vms/"+strconv.Itoa(vmid)] = true
		}
		for st := range pool.Storages {
			paths["/storage/"+st] = true
		}
	}
	return paths
}

// Viewer checks the privileges of one identity for lists of thousands of guests.
type Viewer struct {
	store *Store
	id    Identity
	memo  map[string]map[string]bool
	exact map[string]bool
}

// Viewer returns a viewer that caches results. It is valid for one request.
func (s *Store) Viewer(id Identity) *Viewer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return &Viewer{store: s, id: id, memo: map[string]map[string]bool{}, exact: exactPaths(s)}
}

// Has is like Store.Has. A path without entries has the privileges that propagate from its parent.
func (v *Viewer) Has(path, privilege string) bool {
	if parent := path[:strings.LastIndex(path, "/")]; parent != "" && !v.exact[path] {
		propagate, ok := v.perms(parent)[privilege]
		return ok && propagate
	}
	_, ok := v.perms(path)[privilege]
	return ok
}

func (v *Viewer) perms(path string) map[string]bool {
	if p, ok := v.memo[path]; ok {
		return p
	}
	p := v.store.Permissions(v.id, path)
	v.memo[path] = p
	return p
}
