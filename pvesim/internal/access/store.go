// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package access stores users, API tokens, roles, ACLs and resource pools, and evaluates permissions.
package access

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Root is the only user that passes checks by name. Its tokens do not: their identity is "root@pam!name".
const Root = "root@pam"

// User is a user account.
type User struct {
	ID       string
	Password string
	Disabled bool
	Expire   int64
	Comment  string
	Email    string
	First    string
	Last     string
	Groups   []string
	Tokens   map[string]*Token
}

// Token is an API token of a user.
type Token struct {
	ID      string
	Secret  string
	Privsep bool
	Expire  int64
	Comment string
}

// Role is a named set of privileges.
type Role struct {
	Privileges []string
	Special    bool
}

// Pool is a resource pool: guests and storages that share permissions.
type Pool struct {
	ID       string
	Comment  string
	VMs      map[int]bool
	Storages map[string]bool
}

// Entry is an ACL entry.
type Entry struct {
	Path      string
	Kind      string // "user", "group" or "token"
	ID        string
	Role      string
	Propagate bool
}

// Store holds the content of user.cfg. Its methods are safe for concurrent use.
type Store struct {
	mu     sync.RWMutex
	users  map[string]*User
	roles  map[string]*Role
	pools  map[string]*Pool
	acl    []Entry
	all    []string
	groups map[string]string // comments by name
}

// New returns a store with root@pam and the built-in roles over the given set of privileges.
func New(privileges []string) *Store {
	s := &Store{users: map[string]*User{}, roles: map[string]*Role{}, pools: map[string]*Pool{}, groups: map[string]string{}}
	s.all = slices.Sorted(slices.Values(privileges))
	s.users[Root] = &User{ID: Root, Tokens: map[string]*Token{}}
	s.addBuiltinRoles()
	return s
}

func (s *Store) addBuiltinRoles() {
	pick := func(prefixes ...string) []string {
		var out []string
		for _, p := range s.all {
			if slices.ContainsFunc(prefixes, func(x string) bool { return p == x || strings.HasSuffix(x, ".") && strings.HasPrefix(p, x) }) {
				out = append(out, p)
			}
		}
		return out
	}
	admin := slices.DeleteFunc(slices.Clone(s.all), func(p string) bool {
		return slices.Contains([]string{
			"Mapping.Modify", "Permissions.Modify", "Realm.Allocate", "Sys.AccessNetwork", "Sys.Incoming", "Sys.Modify", "Sys.PowerMgmt",
		}, p)
	})
	audit := slices.DeleteFunc(slices.Clone(s.all), func(p string) bool {
		return !strings.HasSuffix(p, ".Audit")
	})
	for name, privs := range map[string][]string{
		"Administrator": slices.Clone(s.all), "NoAccess": nil, "PVEAdmin": admin, "PVEAuditor": audit,
		"PVEDatastoreAdmin": pick("Datastore."), "PVEDatastoreUser": pick("Datastore.AllocateSpace", "Datastore.Audit"),
		"PVEMappingAdmin": pick("Mapping."), "PVEMappingUser": pick("Mapping.Audit", "Mapping.Use"),
		"PVEPoolAdmin": pick("Pool."), "PVEPoolUser": pick("Pool.Audit"), "PVESDNAdmin": pick("SDN."),
		"PVESDNUser": pick("SDN.Audit", "SDN.Use"), "PVESysAdmin": pick("Sys.Audit", "Sys.Console", "Sys.Syslog"),
		"PVETemplateUser": pick("VM.Audit", "VM.Clone"),
		"PVEUserAdmin":    pick("Group.Allocate", "Realm.AllocateUser", "User.Modify"),
		"PVEVMAdmin":      pick("VM."),
		"PVEVMUser": pick("VM.Audit", "VM.Backup", "VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.PowerMgmt",
			"VM.GuestAgent.Audit", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileWrite", "VM.GuestAgent.FileSystemMgmt"),
	} {
		s.roles[name] = &Role{Privileges: privs, Special: true}
	}
}

// Update runs f with exclusive access. f must not call other methods of the store.
func (s *Store) Update(f func(d *Data) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f(&Data{Users: s.users, Roles: s.roles, Pools: s.pools, ACL: &s.acl, Groups: s.groups})
}

// View runs f with read access. f must not change the data or call other methods of the store.
func (s *Store) View(f func(d *Data)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f(&Data{Users: s.users, Roles: s.roles, Pools: s.pools, ACL: &s.acl, Groups: s.groups})
}

// Data is the content of the store during Update and View.
type Data struct {
	Users  map[string]*User
	Roles  map[string]*Role
	Pools  map[string]*Pool
	ACL    *[]Entry
	Groups map[string]string
}

// Grant adds an ACL entry. If it exists, Grant updates its propagation.
func (d *Data) Grant(e Entry) {
	for i, old := range *d.ACL {
		if old.Path == e.Path && old.Kind == e.Kind && old.ID == e.ID && old.Role == e.Role {
			(*d.ACL)[i].Propagate = e.Propagate
			return
		}
	}
	*d.ACL = append(*d.ACL, e)
}

// Revoke removes an ACL entry regardless of its propagation.
func (d *Data) Revoke(e Entry) {
	*d.ACL = slices.DeleteFunc(*d.ACL, func(old Entry) bool {
		return old.Path == e.Path && old.Kind == e.Kind && old.ID == e.ID && old.Role == e.Role
	})
}

// PoolOf returns the resource pool of a guest, or "".
func (d *Data) PoolOf(vmid int) string {
	for _, id := range slices.Sorted(maps.Keys(d.Pools)) {
		if d.Pools[id].VMs[vmid] {
			return id
		}
	}
	return ""
}

// RemoveGuest removes a guest from resource pools and ACLs.
func (s *Store) RemoveGuest(vmid int) {
	path := fmt.Sprintf("/vms/%d", vmid)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		delete(p.VMs, vmid)
	}
	s.acl = slices.DeleteFunc(s.acl, func(e Entry) bool { return e.Path == path })
}

// AddPool defines a resource pool with its members, replacing one with the same ID.
func (s *Store) AddPool(id, comment string, vms []int, storages []string) {
	p := &Pool{ID: id, Comment: comment, VMs: map[int]bool{}, Storages: map[string]bool{}}
	for _, v := range vms {
		p.VMs[v] = true
	}
	for _, name := range storages {
		p.Storages[name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools[id] = p
}

// PoolExists reports whether a resource pool is defined.
func (s *Store) PoolExists(id string) (ok bool) {
	s.View(func(d *Data) { ok = d.Pools[id] != nil })
	return ok
}

// PoolIDs lists the resource pools in order.
func (s *Store) PoolIDs() (ids []string) {
	s.View(func(d *Data) { ids = slices.Sorted(maps.Keys(d.Pools)) })
	return ids
}

// PoolsOfGuests returns the resource pool of each guest that is in one.
func (s *Store) PoolsOfGuests() map[int]string {
	out := map[int]string{}
	s.View(func(d *Data) {
		for id, p := range d.Pools {
			for vmid := range p.VMs {
				out[vmid] = id
			}
		}
	})
	return out
}
