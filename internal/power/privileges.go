// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// requiredPrivileges are the privileges to read everything that keeps a Host awake. Without
// them Proxmox refuses a call, or omits objects from its lists. The second path represents all
// objects below the first one.
var requiredPrivileges = []struct{ path, below, privilege string }{
	{"/", "/", "Sys.Audit"},
	{"/vms", "/vms/0", "VM.Audit"},
	{"/storage", "/storage/0", "Datastore.Audit"},
}

// MissingPrivileges returns the privileges that the user lacks, with their paths.
func MissingPrivileges(held proxmox.Permissions) []string {
	var missing []string
	for _, r := range requiredPrivileges {
		if !held.Has(r.below, r.privilege) {
			missing = append(missing, fmt.Sprintf("%s on %s", r.privilege, r.path))
		}
	}
	return missing
}

// MissingToShutDown returns the privilege that the user lacks to shut a Host down and to wake it,
// with its path; empty if it has it.
func MissingToShutDown(held proxmox.Permissions, host string) string {
	if path := "/nodes/" + host; !held.Has(path, "Sys.PowerMgmt") {
		return "Sys.PowerMgmt on " + path
	}
	return ""
}

func missingToShutDown(facts *observed.Facts, host string) string {
	if missing := MissingToShutDown(facts.Permissions, host); missing != "" {
		return fmt.Sprintf("%s lacks %s", facts.User, missing)
	}
	return ""
}

// mayReadPool reports whether Proxmox lists which guests are in a resource pool.
func mayReadPool(snapshot *observed.Snapshot, pool string) bool {
	return snapshot.Facts != nil && snapshot.Facts.Permissions.Has("/pool/"+pool, "Pool.Audit")
}
