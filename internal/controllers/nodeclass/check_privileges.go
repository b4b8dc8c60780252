// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// checkPrivileges checks whether the token has all privileges to launch, maintain and
// delete a VM in this zone.
func checkPrivileges(z zone) *problem {
	required, account := privileges.ForVM(z.vm()), privileges.NewAccount(z.facts(poll.FactPermissions))
	missing := account.Missing(required)
	if len(missing) == 0 {
		return checkRootLogin(z)
	}
	z.facts(poll.FactRoles) // which could contain them
	p := z.hostProblem("%s", account.Message(required))
	p.account, p.required, p.missing = account, required, missing
	return p
}

// vm returns the VM that privileges are determined for.
func (z zone) vm() privileges.VM {
	vm := privileges.VM{Class: z.class, Snapshot: z.snapshot, Host: z.host, Template: z.config}
	if z.template != nil {
		vm.TemplateID = z.template.VMID
	}
	if storage, err := placement.ISOStorage(z.snapshot, z.host, "spec.metadataOptions.storage", z.class.Spec.MetadataOptions.Storage); err == nil {
		vm.BootDriveStorage = storage
	}
	return vm
}

// mergePrivileges gives the problems of one region the same message, with one command
// for all Hosts.
func mergePrivileges(problems []problem) {
	required := map[string][]privileges.Required{}
	for _, p := range problems {
		required[p.region] = append(required[p.region], p.required...)
	}
	messages := map[string]string{}
	for n, p := range problems {
		if len(p.required) == 0 {
			continue
		}
		if messages[p.region] == "" {
			messages[p.region] = p.account.Message(required[p.region])
		}
		problems[n].message = messages[p.region]
	}
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
	if p := checkEncryption(z); p != nil {
		return p
	}
	if !z.class.Spec.MetadataOptions.UsesFWCfg() {
		return nil
	}
	return z.regionProblem("spec.metadataOptions.type fwcfg sets QEMU arguments, which only root@pam may do; " +
		"add a root login for this region to the cloud config (docs/boot-data.md), or use type cdrom with an image whose Ignition supports the platform proxmoxve")
}

// checkEncryption returns a problem if confidential computing needs a root login. It does not
// if the template has the same options, which root has set there.
func checkEncryption(z zone) *problem {
	options := vmconfig.RootOptions(z.class.Spec.Hardware.Get())
	if len(options) == 0 || (z.config != nil && vmconfig.HasOptions(*z.config, options)) {
		return nil
	}
	option := slices.Sorted(maps.Keys(options))[0]
	return z.regionProblem("spec.hardware.confidentialComputing sets %s, which only root@pam may do; "+
		"add a root login for this region to the cloud config (docs/nodeclass.md), or set it in the template as root: qm set TEMPLATE --%s %s", option, option, options[option])
}
