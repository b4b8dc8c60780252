// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

import "slices"

// haPrivileges are the privileges on / for reading and changing HA. On a Host, Sys.Console
// opens a console, so they are granted in a role that Hosts do not inherit.
var haPrivileges = []string{"Sys.Audit", "Sys.Console"}

// roleHA is the role of haPrivileges in docs/permissions.md.
const roleHA = "KarpenterHA"

// isForHA reports whether only HA requires the privilege.
func isForHA(r Required) bool { return r.Path == "/" && slices.Contains(haPrivileges, r.Privilege) }

// onHA returns the privileges for spec.highAvailability.
func (vm VM) onHA() []Required {
	if vm.Class.Spec.HighAvailability == nil {
		return nil
	}
	return on("/", haPrivileges...)
}
