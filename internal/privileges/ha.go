// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

import "slices"

// haPrivileges are the privileges on / for reading and changing HA.
var haPrivileges = []string{"Sys.Audit", "Sys.Console"}

// isOnRoot reports whether Proxmox checks the privilege on / itself. It is granted in a
// role that no other path inherits: on a Host, Sys.Console opens a console, and Sys.Modify
// changes the network.
func (r Required) isOnRoot() bool { return r.Path == "/" }

// roleOnRoot returns the role of docs/permissions.md for a privilege on / itself.
func roleOnRoot(privilege string) string {
	if slices.Contains(haPrivileges, privilege) {
		return "KarpenterHA"
	}
	return "KarpenterStartup"
}

// onHA returns the privileges for spec.highAvailability.
func (vm VM) onHA() []Required {
	if vm.Class.Spec.HighAvailability == nil {
		return nil
	}
	return on("/", haPrivileges...)
}
