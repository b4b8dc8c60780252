// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Message lists the missing privileges by path, and the commands that grant them. It
// returns "" if none of the required privileges is missing.
func (a Account) Message(required []Required) string {
	missing := a.Missing(required)
	if len(missing) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s lacks %s", describeUser(a.User), describeMissing(missing))
	denied, a := a.withoutDenials(missing)
	var commands []string
	for _, path := range denied {
		commands = append(commands, aclCommand("delete", a.User, path, noAccess))
	}
	if len(denied) > 0 {
		text += fmt.Sprintf("; an ACL on %s cancels what it inherits there (pveum acl list)", strings.Join(denied, ", "))
		missing = a.Missing(required)
	}
	fix := "run: " + strings.Join(append(commands, a.commands(required, missing)...), " && ")
	if pool := a.suitablePool(missing); pool != "" && len(denied) == 0 {
		fix = fmt.Sprintf("set spec.resourcePool to %s, where it has them, or %s", pool, fix)
	}
	return text + "; " + fix
}

// noAccess is the role of Proxmox that cancels all others.
const noAccess = "NoAccess"

// withoutDenials returns the paths on which an ACL cancels inherited privileges that are
// missing, and the account without these ACLs.
func (a Account) withoutDenials(missing []Required) ([]string, Account) {
	var denied []string
	held := maps.Clone(a.Held)
	for _, r := range missing {
		for at := held.Source(r.Path); held.IsDenied(at); at = held.Source(r.Path) {
			denied = append(denied, at)
			delete(held, at)
		}
	}
	a.Held = held
	return denied, a
}

// describeMissing lists the privileges by path. Paths that lack the same privileges are
// listed together.
func describeMissing(missing []Required) string {
	byPath := newOrderedGroups()
	for _, r := range missing {
		byPath.add(displayPath(r.Path), r.Privilege)
	}
	paths := newOrderedGroups()
	for _, path := range byPath.keys {
		paths.add(strings.Join(byPath.values[path], ", "), path)
	}
	parts := make([]string, 0, len(paths.keys))
	for _, privileges := range paths.keys {
		parts = append(parts, privileges+" on "+strings.Join(paths.values[privileges], ", "))
	}
	return strings.Join(parts, "; ")
}

// displayPath returns the path as an administrator would name it.
func displayPath(path string) string {
	if path == anyVM {
		return "/vms"
	}
	return path
}

// commands returns the commands that grant the missing privileges. An ACL replaces what its
// path inherits, so a role contains all privileges that are required there.
func (a Account) commands(required, missing []Required) []string {
	byPath, onRoot := newOrderedGroups(), newOrderedGroups()
	for _, r := range missing {
		if r.isOnRoot() {
			onRoot.add(roleOnRoot(r.Privilege), r.Privilege)
			continue
		}
		at := a.grantPath(r, missing)
		byPath.add(at, append(a.replacedBy(at), firstAlternative(r.Privilege))...)
	}
	for _, r := range required {
		if role := roleOnRoot(r.Privilege); r.isOnRoot() {
			if onRoot.values[role] != nil {
				onRoot.add(role, r.Privilege)
			}
			continue
		}
		if at := a.grantPath(r, missing); byPath.values[at] != nil && a.Held.Has(r.Path, r.Privilege) {
			byPath.add(at, r.Privilege)
		}
	}
	roles := newOrderedGroups()
	var grants []string
	for _, path := range byPath.keys {
		role := roleFor(path, byPath.values[path])
		roles.add(role, byPath.values[path]...)
		grants = append(grants, aclCommand("modify", a.User, path, role))
	}
	for _, role := range onRoot.keys {
		roles.add(role, onRoot.values[role]...)
		grants = append(grants, aclCommand("modify", a.User, "/", role)+" --propagate 0")
	}
	var commands []string
	for _, role := range roles.keys {
		if command := a.roleCommand(role, roles.values[role]); command != "" {
			commands = append(commands, command)
		}
	}
	return append(commands, grants...)
}

func firstAlternative(privilege string) string {
	first, _, _ := strings.Cut(privilege, "|")
	return first
}

// grantPath returns the path on which a privilege should be granted: that which Proxmox
// checks, unless the account inherits privileges there that allow changes. Then it is the
// path on which these were granted: the account is meant to manage everything below it, and
// an ACL on a deeper path would replace them.
func (a Account) grantPath(r Required, missing []Required) string {
	switch origin := a.Held.Origin(r.Path); {
	case origin == anyVM:
	case origin == r.Path || allowsChanges(a.Held.Propagated(origin)):
		return origin
	}
	if strings.HasPrefix(r.Path, "/nodes/") && slices.ContainsFunc(missing, func(other Required) bool {
		return strings.HasPrefix(other.Path, "/nodes/") && other.Path != r.Path
	}) {
		return "/nodes"
	}
	return displayPath(r.Path)
}

// allowsChanges reports whether privileges allow more than reading.
func allowsChanges(privileges map[string]bool) bool {
	for privilege := range privileges {
		if !strings.HasSuffix(privilege, ".Audit") {
			return true
		}
	}
	return false
}

// checkedKinds are the kinds of privileges that Proxmox checks on paths, by the first part
// of the path.
var checkedKinds = map[string][]string{
	"mapping": {"Mapping"}, "nodes": {"Sys"}, "pool": {"Datastore", "Pool", "VM"}, "sdn": {"SDN"}, "storage": {"Datastore"}, "vms": {"VM"},
}

// replacedBy returns the privileges that the account inherits on a path and would lose by
// an ACL on it.
func (a Account) replacedBy(path string) []string {
	origin := a.Held.Origin(path)
	if origin == path {
		return nil
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	var replaced []string
	for privilege := range a.Held.Propagated(origin) {
		if kind, _, _ := strings.Cut(privilege, "."); slices.Contains(checkedKinds[first], kind) {
			replaced = append(replaced, privilege)
		}
	}
	return replaced
}

// roleCommand returns the command that creates a role or adds privileges to it, or "" if
// it has all of them.
func (a Account) roleCommand(role string, privileges []string) string {
	existing, exists := a.Roles[role]
	if !exists {
		return fmt.Sprintf("pveum role add %s --privs %q", role, strings.Join(privileges, " "))
	}
	lacking := slices.DeleteFunc(slices.Clone(privileges), func(p string) bool { return slices.Contains(existing, p) })
	if len(lacking) == 0 {
		return ""
	}
	return fmt.Sprintf("pveum role modify %s --append 1 --privs %q", role, strings.Join(lacking, " "))
}

// roleFor returns the role of docs/permissions.md for a path. Built-in roles of Proxmox
// contain privileges that are not required, such as the console of all guests.
func roleFor(path string, privileges []string) string {
	kind, object, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch kind {
	case "vms":
		if object == strconv.Itoa(proxmox.RetainedVMID) {
			return "KarpenterRetained"
		}
		if object != "" {
			return "KarpenterTemplate"
		}
		return "KarpenterVM"
	case "pool":
		return "KarpenterVM"
	case "storage":
		if slices.Contains(privileges, "Datastore.Allocate") || slices.Contains(privileges, "Datastore.AllocateTemplate") {
			return "KarpenterISO"
		}
		return "KarpenterDisk"
	case "sdn":
		return "KarpenterNet"
	case "mapping":
		return "KarpenterMapping"
	case "nodes":
		return "KarpenterHost"
	}
	return "Karpenter"
}

// aclCommand returns the command that grants (modify) or revokes (delete) a role on a path.
func aclCommand(action, user, path, role string) string {
	command := fmt.Sprintf("pveum acl %s %s --roles %s", action, path, role)
	owner, _, isToken := strings.Cut(user, "!")
	if owner == "" {
		return command + " --users USER"
	}
	command += " --users " + owner
	if isToken {
		// A token with privilege separation needs its own ACL; others ignore it.
		command += fmt.Sprintf(" --tokens '%s'", user)
	}
	return command
}

// suitablePool returns a resource pool on which the account has the privileges that it
// lacks on /vms, or "".
func (a Account) suitablePool(missing []Required) string {
	for _, path := range slices.Sorted(maps.Keys(a.Held)) {
		pool, ok := strings.CutPrefix(path, "/pool/")
		if !ok {
			continue
		}
		lacking := slices.ContainsFunc(missing, func(r Required) bool { return r.Path != anyVM || !a.Held.Has(path, r.Privilege) })
		if !lacking {
			return pool
		}
	}
	return ""
}

// SuitablePools returns the resource pools on which the account may create VMs, sorted.
func (a Account) SuitablePools() []string {
	var pools []string
	for path := range a.Held {
		if pool, ok := strings.CutPrefix(path, "/pool/"); ok && a.Held.Has(path, "VM.Allocate") {
			pools = append(pools, pool)
		}
	}
	slices.Sort(pools)
	return pools
}

// String returns the kind and the name of the account.
func (a Account) String() string { return describeUser(a.User) }

func describeUser(user string) string {
	switch {
	case user == "":
		return "the configured user"
	case strings.Contains(user, "!"):
		return "API token " + user
	}
	return "user " + user
}

// orderedGroups groups strings by key, in the order of insertion.
type orderedGroups struct {
	keys   []string
	values map[string][]string
}

func newOrderedGroups() *orderedGroups { return &orderedGroups{values: map[string][]string{}} }

func (g *orderedGroups) add(key string, texts ...string) {
	if g.values[key] == nil {
		g.keys = append(g.keys, key)
	}
	for _, text := range texts {
		if !slices.Contains(g.values[key], text) {
			g.values[key] = append(g.values[key], text)
		}
	}
	slices.Sort(g.values[key])
}
