// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package privileges determines which privileges in Proxmox the VMs of a NodeClass (ForVM)
// and the Templates of a ProxmoxTemplate (ForTemplate) require, which of them an Account
// lacks, and the commands that grant them. Conditions, the preflight command and the test
// of docs/permissions.md all use it, so they cannot disagree. It is pure.
package privileges

import (
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Required is a privilege that an operation requires.
type Required struct {
	// Path is the ACL path. Privilege can list alternatives, separated by "|".
	Path, Privilege string
	// AlternativePath also grants it: a VM in a resource pool has the privileges on the
	// resource pool.
	AlternativePath string
	// Anywhere is set if the privilege is required on any one path below Path.
	Anywhere bool
}

// anyVM represents future VMs. Privileges on /vms without propagation do not apply to
// them.
const anyVM = "/vms/0"

// IsHeld reports whether a user has the privilege, or one of several alternatives.
func (r Required) IsHeld(held proxmox.Permissions) bool {
	for privilege := range strings.SplitSeq(r.Privilege, "|") {
		if held.Has(r.Path, privilege) || (r.AlternativePath != "" && held.Has(r.AlternativePath, privilege)) {
			return true
		}
		if r.Anywhere && (held.HasBelow(r.Path, privilege) || (r.AlternativePath != "" && held.HasBelow(r.AlternativePath, privilege))) {
			return true
		}
	}
	return false
}

// Account is a user or API token with its privileges.
type Account struct {
	User string
	Held proxmox.Permissions
	// Roles are the privileges of the Cluster's roles by name; nil if they were not read.
	Roles map[string][]string
}

// NewAccount returns the account that a Cluster is read with.
func NewAccount(facts *observed.Facts) Account {
	return Account{User: facts.User, Held: facts.Permissions, Roles: facts.Roles}
}

// Missing returns the required privileges that the account lacks, each once.
func (a Account) Missing(required []Required) []Required {
	var missing []Required
	seen := map[Required]bool{}
	for _, r := range required {
		if !seen[r] && !r.IsHeld(a.Held) {
			missing = append(missing, r)
		}
		seen[r] = true
	}
	return missing
}

// InheritedPaths returns the paths of required privileges that seem to inherit privileges.
// Proxmox does not list on which of them an ACL cancels these.
func (a Account) InheritedPaths(required []Required) []string {
	var paths []string
	for _, r := range required {
		source := a.Held.Source(r.Path)
		if r.Path == anyVM || r.Anywhere || source == r.Path || slices.Contains(paths, r.Path) {
			continue
		}
		if slices.Contains(slices.Collect(maps.Values(a.Held[source])), true) {
			paths = append(paths, r.Path)
		}
	}
	return paths
}

// HidesObjects reports whether objects can be invisible to the account because it lacks
// these privileges, so that they seem not to exist.
func (a Account) HidesObjects(missing []Required) bool {
	return slices.ContainsFunc(missing, func(r Required) bool {
		kind, action, _ := strings.Cut(r.Privilege, ".")
		return action == "Audit" || (action == "Use" && !a.Held.Has(r.Path, kind+".Audit"))
	})
}

// on returns requirements for several privileges on one path.
func on(path string, privileges ...string) []Required {
	out := make([]Required, 0, len(privileges))
	for _, privilege := range privileges {
		out = append(out, Required{Path: path, Privilege: privilege})
	}
	return out
}

// OnVM returns requirements for several privileges on future VMs: on all VMs, or on those
// of a resource pool.
func OnVM(resourcePool string, privileges ...string) []Required {
	if resourcePool == "" {
		return on(anyVM, privileges...)
	}
	out := on("/pool/"+resourcePool, privileges...)
	for i := range out {
		out[i].AlternativePath = anyVM
	}
	return out
}
