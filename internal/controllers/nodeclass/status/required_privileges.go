// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// requiredPrivilege is a privilege that the lifecycle of a VM requires.
type requiredPrivilege struct {
	path, privilege string
	// alternativePath also grants it: a VM in a resource pool has the privileges on the
	// pool.
	alternativePath string
}

// isHeld reports whether the user has the privilege, or one of several alternatives.
func (r requiredPrivilege) isHeld(held proxmox.Permissions) bool {
	for privilege := range strings.SplitSeq(r.privilege, "|") {
		if held.Has(r.path, privilege) || (r.alternativePath != "" && held.Has(r.alternativePath, privilege)) {
			return true
		}
	}
	return false
}

// anyVM represents future VMs. Privileges on /vms without propagation do not apply to
// them.
const anyVM = "/vms/0"

// requiredPrivileges returns the privileges that a VM in the zone requires, as far as
// its configuration is known.
func requiredPrivileges(z zone) []requiredPrivilege {
	all := []requiredPrivilege{{path: "/nodes/" + z.host, privilege: "Sys.Audit"}}
	all = append(all, templatePrivileges(z)...)
	all = append(all, vmPrivileges(z)...)
	all = append(all, diskPrivileges(z)...)
	all = append(all, isoPrivileges(z)...)
	return append(all, devicePrivileges(z)...)
}

// templatePrivileges returns the privileges on the template. Without VM.Audit the token
// sees no template, so none is known.
func templatePrivileges(z zone) []requiredPrivilege {
	if z.config != nil {
		path := fmt.Sprintf("/vms/%d", z.template.VMID)
		return []requiredPrivilege{{path: path, privilege: "VM.Audit"}, {path: path, privilege: "VM.Clone"}}
	}
	if held := z.facts().Permissions; held.HasBelow("/vms", "VM.Audit") || held.HasBelow("/pool", "VM.Audit") {
		return nil
	}
	return []requiredPrivilege{{path: "/vms", privilege: "VM.Audit"}}
}

// vmPrivileges returns the privileges on the VM, on all VMs or on those of the resource
// pool.
func vmPrivileges(z zone) []requiredPrivilege {
	required := []string{
		"VM.Audit", "VM.Allocate", "VM.PowerMgmt", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.HWType", "VM.Config.Disk",
	}
	spec := z.class.Spec
	if len(spec.Tags) > 0 || (z.config != nil && z.config.Protected()) {
		required = append(required, "VM.Config.Options")
	}
	if len(spec.SecurityGroups) > 0 || (z.config != nil && len(z.config.Network().NICs()) > 0) {
		required = append(required, "VM.Config.Network")
	}
	required = append(required, bootDrivePrivileges(z)...)
	out := make([]requiredPrivilege, 0, len(required))
	for _, privilege := range required {
		n := requiredPrivilege{path: anyVM, privilege: privilege}
		if spec.ResourcePool != "" {
			n = requiredPrivilege{path: "/pool/" + spec.ResourcePool, privilege: privilege, alternativePath: anyVM}
		}
		out = append(out, n)
	}
	return out
}

// bootDrivePrivileges returns the privileges on the VM for its boot drive.
func bootDrivePrivileges(z zone) (required []string) {
	options := z.class.Spec.MetadataOptions
	if options.UsesCDROM() {
		required = append(required, "VM.Config.CDROM")
	}
	if z.config == nil {
		return required
	}
	_, has := z.config.Drives().CloudInit()
	switch {
	case options.UsesCDROM() && has:
		// Removing the template's drive requires VM.Config.Cloudinit.
		return append(required, "VM.Config.Cloudinit")
	case options.UsesCloudInitDrive() && !has:
		return append(required, "VM.Config.Cloudinit", "VM.Config.CDROM")
	case options.UsesCloudInitDrive() && len(z.config.Network().NICs()) == 0:
		// With interfaces, VM.Config.Network allows setting the options too.
		return append(required, "VM.Config.Cloudinit")
	}
	return required
}

// diskPrivileges returns the privileges on the storages of the disks: that of the class,
// else those of the template.
func diskPrivileges(z zone) []requiredPrivilege {
	var names []string
	if storage := z.class.Spec.BootDevice.Storage; storage != "" {
		names = append(names, storage)
	} else if z.config != nil {
		for _, drive := range z.config.Drives().All() {
			if !drive.IsCDROM && !drive.IsCloudInit && drive.Storage != "" {
				names = append(names, drive.Storage)
			}
		}
		for _, slot := range []string{"efidisk0", "tpmstate0"} {
			if value, ok := z.config.Options[slot]; ok {
				names = append(names, proxmox.ParseDrive(slot, value).Storage)
			}
		}
	}
	if z.config != nil {
		if storage, added := vmconfig.CloudInitStorage(z.class, *z.config); added {
			names = append(names, storage)
		}
	}
	var out []requiredPrivilege
	for _, name := range names {
		out = append(out, requiredPrivilege{path: "/storage/" + name, privilege: "Datastore.AllocateSpace"}, requiredPrivilege{path: "/storage/" + name, privilege: "Datastore.Audit"})
	}
	return out
}

// isoPrivileges returns the privileges for uploading and deleting the boot drive.
// Deleting requires Datastore.Allocate.
func isoPrivileges(z zone) []requiredPrivilege {
	if !z.class.Spec.MetadataOptions.IsRendered() {
		return nil
	}
	name := z.class.Spec.MetadataOptions.Storage
	if name == "" {
		var err error
		if name, err = plan.ISOStorage(z.snapshot, z.host, ""); err != nil {
			return invisibleStoragePrivileges(z.facts().Permissions)
		}
	}
	path := "/storage/" + name
	return []requiredPrivilege{
		{path: path, privilege: "Datastore.Allocate"}, {path: path, privilege: "Datastore.AllocateTemplate"}, {path: path, privilege: "Datastore.Audit"},
	}
}

// invisibleStoragePrivileges returns the missing Datastore.Audit if no storage is
// visible. The intended storage may be any with other privileges.
func invisibleStoragePrivileges(held proxmox.Permissions) []requiredPrivilege {
	var out []requiredPrivilege
	for path := range held {
		if strings.HasPrefix(path, "/storage/") && held.Has(path, "Datastore.AllocateTemplate") && !held.Has(path, "Datastore.Audit") {
			out = append(out, requiredPrivilege{path: path, privilege: "Datastore.Audit"})
		}
	}
	slices.SortFunc(out, func(a, b requiredPrivilege) int { return strings.Compare(a.path, b.path) })
	if len(out) == 0 && !held.HasBelow("/storage", "Datastore.Audit") {
		out = append(out, requiredPrivilege{path: "/storage", privilege: "Datastore.Audit"})
	}
	return out
}

// devicePrivileges returns the privileges on bridges and mappings of the template's
// devices, which Proxmox checks again when cloning, and on the class's shares.
func devicePrivileges(z zone) []requiredPrivilege {
	var out []requiredPrivilege
	for _, s := range requiredShares(z) {
		out = append(out, requiredPrivilege{path: "/mapping/dir/" + s.mapping, privilege: "Mapping.Use"})
	}
	if z.config == nil {
		return out
	}
	for _, nic := range z.config.Network().NICs() {
		if path, ok := bridgePath(z, nic); ok {
			out = append(out, requiredPrivilege{path: path, privilege: "SDN.Use"})
		}
	}
	for option, value := range z.config.Options {
		properties := proxmox.ParseProperties(value)
		switch kind := strings.TrimRight(option, "0123456789"); kind {
		case "hostpci", "usb":
			if mapping := properties.Value("mapping"); mapping != "" {
				out = append(out, requiredPrivilege{path: "/mapping/" + map[string]string{"hostpci": "pci", "usb": "usb"}[kind] + "/" + mapping, privilege: "Mapping.Use"})
			}
		case "rng":
			// The key of the source is optional.
			if slices.ContainsFunc(properties, func(p proxmox.Property) bool { return p.Value == "/dev/hwrng" }) {
				out = append(out, requiredPrivilege{path: "/mapping/hwrng", privilege: "Mapping.Use"})
			}
		case "cpu":
			model, _, _ := strings.Cut(strings.TrimPrefix(value, "cputype="), ",")
			if custom, ok := strings.CutPrefix(model, "custom-"); ok && z.snapshot.Version.AtLeast(9, 2) {
				// Before PVE 9.2, Sys.Audit on /nodes is sufficient, which is required anyway.
				out = append(out, requiredPrivilege{path: "/mapping/cpu/" + custom, privilege: "Mapping.Use"})
			}
		}
	}
	slices.SortFunc(out, func(a, b requiredPrivilege) int { return strings.Compare(a.path, b.path) })
	return out
}

// bridgePath returns the ACL path of a bridge. The SDN zone of a vnet without SDN.Audit
// is unknown; Proxmox lists such a vnet on a Host only if it may be used.
func bridgePath(z zone, nic proxmox.NIC) (string, bool) {
	if nic.Bridge == "" {
		return "", false
	}
	sdn := "localnetwork"
	if vnet, ok := z.facts().VNets[nic.Bridge]; ok {
		sdn = vnet.Zone
	} else if z.facts().Bridges[z.host][nic.Bridge].Type == "vnet" {
		return "", false
	}
	path := "/sdn/zones/" + sdn + "/" + nic.Bridge
	if nic.VLAN != 0 {
		path += fmt.Sprintf("/%d", nic.VLAN)
	}
	return path, true
}
