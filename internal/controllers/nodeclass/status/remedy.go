// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// lacks names the missing privileges by path, and the commands that grant them.
func lacks(user string, held proxmox.Permissions, missing []need) string {
	wanted := newGroups()
	for _, n := range missing {
		path := n.path
		if path == anyVM {
			path = "/vms"
		}
		wanted.add(path, n.privilege)
	}
	var parts, grants []string
	roles := newGroups()
	for _, path := range wanted.keys {
		privileges := wanted.of[path]
		parts = append(parts, strings.Join(privileges, ", ")+" on "+path)
		// Where something is held already, an ACL of its own would replace what comes
		// from above, so that the role there is extended; elsewhere one of Proxmox's
		// own roles is granted.
		if origin := held.Origin(path); origin != "" {
			roles.add(origin, privileges...)
		} else {
			grants = append(grants, grant(user, path, privileges))
		}
	}
	for _, origin := range roles.keys {
		grants = append(grants, fmt.Sprintf("pveum role modify ROLE --append 1 --privs %q (ROLE is what it has on %s)", strings.Join(roles.of[origin], " "), origin))
	}
	return fmt.Sprintf("%s lacks %s; run: %s", named(user), strings.Join(parts, "; "), strings.Join(grants, "; "))
}

// groups are texts under keys, in the order in which they came.
type groups struct {
	keys []string
	of   map[string][]string
}

func newGroups() *groups { return &groups{of: map[string][]string{}} }

func (g *groups) add(key string, texts ...string) {
	if g.of[key] == nil {
		g.keys = append(g.keys, key)
	}
	for _, text := range texts {
		if !slices.Contains(g.of[key], text) {
			g.of[key] = append(g.of[key], text)
		}
	}
	slices.Sort(g.of[key])
}

// grant is the command that gives one of Proxmox's own roles on a path.
func grant(user, path string, privileges []string) string {
	command := fmt.Sprintf("pveum acl modify %s --roles %s", path, builtIn(path, privileges))
	owner, _, isToken := strings.Cut(user, "!")
	if owner == "" {
		return command + " --users USER"
	}
	command += " --users " + owner
	if isToken {
		// A token with privilege separation needs it as well; another ignores it.
		command += fmt.Sprintf(" --tokens '%s'", user)
	}
	return command
}

// builtIn is the smallest of Proxmox's own roles with these privileges on such a path.
func builtIn(path string, privileges []string) string {
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

func named(user string) string {
	switch {
	case user == "":
		return "our user"
	case strings.Contains(user, "!"):
		return "API token " + user
	}
	return "user " + user
}
