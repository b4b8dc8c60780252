// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import "github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"

// SetRole creates a role, or replaces its privileges.
func (s *Simulator) SetRole(r Role) error {
	return s.engine.Access.Update(func(d *access.Data) error {
		d.Roles[r.ID] = &access.Role{Privileges: r.Privileges}
		return nil
	})
}
