// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// missingPrivilegesMessage lists the missing privileges by path, and the commands that
// grant them.
func missingPrivilegesMessage(user string, held proxmox.Permissions, missing []requiredPrivilege) string {
	byPath := newOrderedGroups()
	for _, n := range missing {
		path := n.path
		if path == anyVM {
			path = "/vms"
		}
		byPath.add(path, n.privilege)
	}
	var parts, commands, fixes []string
	roles := newOrderedGroups()
	for _, path := range byPath.keys {
		privileges := byPath.values[path]
		parts = append(parts, strings.Join(privileges, ", ")+" on "+path)
		// An additional ACL on a path replaces inherited privileges. So the existing role
		// is extended if there is one; otherwise a built-in role of Proxmox is granted.
		if origin := held.Origin(path); origin != "" {
			roles.add(origin, privileges...)
		} else {
			commands = append(commands, grantCommand(user, path, privileges))
		}
	}
	if len(commands) > 0 {
		fixes = append(fixes, "run: "+strings.Join(commands, "; "))
	}
	kind := "user"
	if strings.Contains(user, "!") {
		kind = "token"
	}
	for _, origin := range roles.keys {
		fixes = append(fixes, fmt.Sprintf("add the privileges to the %s's role on %s (find it with: pveum acl list): pveum role modify ROLE --append 1 --privs %q",
			kind, origin, strings.Join(roles.values[origin], " ")))
	}
	return fmt.Sprintf("%s lacks %s; %s", describeUser(user), strings.Join(parts, "; "), strings.Join(fixes, "; "))
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

// grantCommand returns the command that grants a built-in role of Proxmox on a path.
func grantCommand(user, path string, privileges []string) string {
	command := fmt.Sprintf("pveum acl modify %s --roles %s", path, builtInRole(path, privileges))
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

// builtInRole returns the smallest built-in role with the privileges for the path.
func builtInRole(path string, privileges []string) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case kind == "storage" && (slices.Contains(privileges, "Datastore.Allocate") || slices.Contains(privileges, "Datastore.AllocateTemplate")):
		return "PVEDatastoreAdmin"
	case kind == "storage":
		return "PVEDatastoreUser"
	case kind == "sdn":
		return "PVESDNUser"
	case kind == "mapping":
		return "PVEMappingUser"
	case kind == "nodes":
		return "PVEAuditor"
	case strings.HasPrefix(path, "/vms/"):
		return "PVETemplateUser"
	}
	return "PVEVMAdmin"
}

func describeUser(user string) string {
	switch {
	case user == "":
		return "the configured user"
	case strings.Contains(user, "!"):
		return "API token " + user
	}
	return "user " + user
}
