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

// need is a privilege that the life of a VM takes.
type need struct {
	path, privilege string
	// or is a path that does as well: a VM in a pool has what is held on the pool.
	or string
}

// anyVM stands for the VMs to come: what is held on /vms without propagation is of
// no use to them.
const anyVM = "/vms/0"

// privileges looks whether the token may do all that launching, handing over and
// removing a VM in this zone takes.
func privileges(z zone) *finding {
	held := z.facts().Permissions
	var missing []need
	for _, n := range needs(z) {
		if !held.Has(n.path, n.privilege) && (n.or == "" || !held.Has(n.or, n.privilege)) && !slices.Contains(missing, n) {
			missing = append(missing, n)
		}
	}
	if len(missing) == 0 {
		return rootLogin(z)
	}
	return z.onHost("%s", lacks(z.facts().User, held, missing))
}

// rootLogin looks whether there is a login of root, for what Proxmox lets no token do.
func rootLogin(z zone) *finding {
	if z.root {
		return nil
	}
	for n, s := range z.class.Spec.Shares {
		if s.Plan9() {
			return z.inRegion("spec.shares[%d].type plan9 sets arguments of QEMU, and Proxmox lets only a login of root@pam do that; "+
				"give this region a root login in the cloud config (docs/shares.md), or use type virtiofs", n)
		}
	}
	if !z.class.Spec.MetadataOptions.Firmware() {
		return nil
	}
	return z.inRegion("spec.metadataOptions.type fwcfg sets arguments of QEMU, and Proxmox lets only a login of root@pam do that; " +
		"give this region a root login in the cloud config (docs/boot-data.md), or take an image whose Ignition has the platform proxmoxve, and type cdrom")
}

// needs lists what a launch in the zone takes, as far as it is known what it uses.
func needs(z zone) []need {
	all := []need{{path: "/nodes/" + z.host, privilege: "Sys.Audit"}}
	all = append(all, templateNeeds(z)...)
	all = append(all, vmNeeds(z)...)
	all = append(all, diskNeeds(z)...)
	all = append(all, isoNeeds(z)...)
	return append(all, deviceNeeds(z)...)
}

// templateNeeds: who lacks VM.Audit sees no Template, so that none is known.
func templateNeeds(z zone) []need {
	if z.config != nil {
		path := fmt.Sprintf("/vms/%d", z.template.VMID)
		return []need{{path: path, privilege: "VM.Audit"}, {path: path, privilege: "VM.Clone"}}
	}
	if held := z.facts().Permissions; held.HasBelow("/vms", "VM.Audit") || held.HasBelow("/pool", "VM.Audit") {
		return nil
	}
	return []need{{path: "/vms", privilege: "VM.Audit"}}
}

// vmNeeds are the privileges on the VM itself, on all VMs or on those of the pool.
func vmNeeds(z zone) []need {
	wanted := []string{
		"VM.Audit", "VM.Allocate", "VM.PowerMgmt", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.HWType", "VM.Config.Disk",
	}
	spec := z.class.Spec
	if len(spec.Tags) > 0 || (z.config != nil && z.config.Protected()) {
		wanted = append(wanted, "VM.Config.Options")
	}
	if len(spec.SecurityGroups) > 0 || (z.config != nil && len(z.config.NICs()) > 0) {
		wanted = append(wanted, "VM.Config.Network")
	}
	wanted = append(wanted, driveNeeds(z)...)
	out := make([]need, 0, len(wanted))
	for _, privilege := range wanted {
		n := need{path: anyVM, privilege: privilege}
		if spec.ResourcePool != "" {
			n = need{path: "/pool/" + spec.ResourcePool, privilege: privilege, or: anyVM}
		}
		out = append(out, n)
	}
	return out
}

// driveNeeds are the privileges on the VM for its boot drive.
func driveNeeds(z zone) (wanted []string) {
	options := z.class.Spec.MetadataOptions
	if options.CDROM() {
		wanted = append(wanted, "VM.Config.CDROM")
	}
	if z.config == nil {
		return wanted
	}
	_, has := z.config.CloudInitDrive()
	switch {
	case options.CDROM() && has:
		// The Template's own drive goes, and that is a cloud-init matter.
		return append(wanted, "VM.Config.Cloudinit")
	case options.ProxmoxDrive() && !has:
		return append(wanted, "VM.Config.Cloudinit", "VM.Config.CDROM")
	case options.ProxmoxDrive() && len(z.config.NICs()) == 0:
		// The right to change interfaces lets the options be written as well.
		return append(wanted, "VM.Config.Cloudinit")
	}
	return wanted
}

// diskNeeds: disks go where the class says, else where those of the Template are.
func diskNeeds(z zone) []need {
	var names []string
	if storage := z.class.Spec.BootDevice.Storage; storage != "" {
		names = append(names, storage)
	} else if z.config != nil {
		for _, drive := range z.config.Drives() {
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
	var out []need
	for _, name := range names {
		out = append(out, need{path: "/storage/" + name, privilege: "Datastore.AllocateSpace"}, need{path: "/storage/" + name, privilege: "Datastore.Audit"})
	}
	return out
}

// isoNeeds: the boot drive is uploaded, and deleted again, for which Proxmox wants
// Datastore.Allocate.
func isoNeeds(z zone) []need {
	if !z.class.Spec.MetadataOptions.Rendered() {
		return nil
	}
	name := z.class.Spec.MetadataOptions.Storage
	if name == "" {
		var err error
		if name, err = plan.ISOStorage(z.snapshot, z.host, ""); err != nil {
			return unseenStorages(z.facts().Permissions)
		}
	}
	path := "/storage/" + name
	return []need{
		{path: path, privilege: "Datastore.Allocate"}, {path: path, privilege: "Datastore.AllocateTemplate"}, {path: path, privilege: "Datastore.Audit"},
	}
}

// unseenStorages: who lacks Datastore.Audit sees no storage, and the one meant may
// be any on which something else is held.
func unseenStorages(held proxmox.Permissions) []need {
	var out []need
	for path := range held {
		if strings.HasPrefix(path, "/storage/") && held.Has(path, "Datastore.AllocateTemplate") && !held.Has(path, "Datastore.Audit") {
			out = append(out, need{path: path, privilege: "Datastore.Audit"})
		}
	}
	slices.SortFunc(out, func(a, b need) int { return strings.Compare(a.path, b.path) })
	if len(out) == 0 && !held.HasBelow("/storage", "Datastore.Audit") {
		out = append(out, need{path: "/storage", privilege: "Datastore.Audit"})
	}
	return out
}

// deviceNeeds are the privileges on what the Template's devices are attached to,
// all of which are checked again when it is cloned, and on the class's shares.
func deviceNeeds(z zone) []need {
	var out []need
	for _, s := range sharesOf(z) {
		out = append(out, need{path: "/mapping/dir/" + s.mapping, privilege: "Mapping.Use"})
	}
	if z.config == nil {
		return out
	}
	for _, nic := range z.config.NICs() {
		if path, ok := bridgePath(z, nic); ok {
			out = append(out, need{path: path, privilege: "SDN.Use"})
		}
	}
	for option, value := range z.config.Options {
		properties := proxmox.ParseProperties(value)
		switch kind := strings.TrimRight(option, "0123456789"); kind {
		case "hostpci", "usb":
			if mapping := properties.Value("mapping"); mapping != "" {
				out = append(out, need{path: "/mapping/" + map[string]string{"hostpci": "pci", "usb": "usb"}[kind] + "/" + mapping, privilege: "Mapping.Use"})
			}
		case "cpu":
			model, _, _ := strings.Cut(strings.TrimPrefix(value, "cputype="), ",")
			if custom, ok := strings.CutPrefix(model, "custom-"); ok && z.snapshot.Version.AtLeast(9, 2) {
				// Before 9.2 Sys.Audit on /nodes does, which is needed anyway.
				out = append(out, need{path: "/mapping/cpu/" + custom, privilege: "Mapping.Use"})
			}
		}
	}
	slices.SortFunc(out, func(a, b need) int { return strings.Compare(a.path, b.path) })
	return out
}

// bridgePath is where the right to use a bridge is held. The zone of a vnet that we
// may not see is not known; Proxmox lists it on a Host only if we may use it.
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
