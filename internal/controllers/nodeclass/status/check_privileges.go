// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import "slices"

// checkPrivileges checks whether the token has all privileges to launch, maintain and
// delete a VM in this zone.
func checkPrivileges(z zone) *problem {
	held := z.facts().Permissions
	var missing []requiredPrivilege
	for _, n := range requiredPrivileges(z) {
		if !n.isHeld(held) && !slices.Contains(missing, n) {
			missing = append(missing, n)
		}
	}
	if len(missing) == 0 {
		return checkRootLogin(z)
	}
	p := z.hostProblem("%s", missingPrivilegesMessage(z.facts().User, held, missing))
	p.missing = missing
	return p
}

// checkRootLogin checks whether there is a root login if the class uses options that
// Proxmox allows no token to set.
func checkRootLogin(z zone) *problem {
	if z.hasRoot {
		return nil
	}
	for n, s := range z.class.Spec.Shares {
		if s.IsPlan9() {
			return z.regionProblem("spec.shares[%d].type plan9 sets QEMU arguments, which only root@pam may do; "+
				"add a root login for this region to the cloud config (docs/shares.md), or use type virtiofs", n)
		}
	}
	if !z.class.Spec.MetadataOptions.UsesFWCfg() {
		return nil
	}
	return z.regionProblem("spec.metadataOptions.type fwcfg sets QEMU arguments, which only root@pam may do; " +
		"add a root login for this region to the cloud config (docs/boot-data.md), or use type cdrom with an image whose Ignition supports the platform proxmoxve")
}
