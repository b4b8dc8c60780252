// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// VM is a future VM of a NodeClass on one Host.
type VM struct {
	Class    *v1alpha1.ProxmoxNodeClass
	Snapshot *observed.Snapshot
	Host     string
	// TemplateID and Template are the template of the VM; Template is nil if it is unknown.
	TemplateID int
	Template   *proxmox.VMConfig
	// BootDriveStorage is the storage of the boot drive; empty if there is none yet.
	BootDriveStorage string
}

// ForVM returns the privileges for launching, maintaining and deleting a VM, as far as its
// configuration is known. It returns more than that if the template is invisible because
// VM.Audit is missing: then all privileges are returned that a usual template requires, so
// that granting them once is sufficient.
func ForVM(vm VM) []Required {
	all := on("/nodes/"+vm.Host, "Sys.Audit")
	all = append(all, vm.onTemplate()...)
	all = append(all, vm.onVM()...)
	all = append(all, vm.onDisks()...)
	all = append(all, vm.onRetainedDisks()...)
	all = append(all, vm.onBootDrive()...)
	all = append(all, vm.onDevices()...)
	all = append(all, vm.onHardware()...)
	return append(all, vm.onHA()...)
}

// ForAnyNodeClass returns the privileges that the VMs of every NodeClass require. Those on
// objects that only a NodeClass names are required on one object of the kind.
func ForAnyNodeClass(vm VM) []Required {
	all := append(ForVM(vm), OnVM(vm.Class.Spec.ResourcePool, "VM.Config.Network")...)
	for path, privilege := range map[string]string{"/vms": "VM.Clone", "/storage": "Datastore.AllocateSpace", "/sdn/zones": "SDN.Use"} {
		r := Required{Path: path, Privilege: privilege, Anywhere: true}
		if path == "/vms" {
			r.AlternativePath = "/pool"
		}
		all = append(all, r)
	}
	sortByPath(all[len(all)-3:])
	return all
}

// isTemplateHidden reports whether no template is visible because VM.Audit is missing.
func (vm VM) isTemplateHidden() bool {
	held := vm.Snapshot.Facts.Permissions
	return vm.Template == nil && !held.HasBelow("/vms", "VM.Audit") && !held.HasBelow("/pool", "VM.Audit")
}

func (vm VM) onTemplate() []Required {
	switch {
	case vm.Template != nil:
		return on(fmt.Sprintf("/vms/%d", vm.TemplateID), "VM.Audit", "VM.Clone")
	case vm.isTemplateHidden():
		return on("/vms", "VM.Audit", "VM.Clone")
	}
	return nil
}

// onVM returns the privileges on the VM itself.
func (vm VM) onVM() []Required {
	required := []string{
		"VM.Audit", "VM.Allocate", "VM.PowerMgmt", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.HWType", "VM.Config.Disk",
	}
	spec := vm.Class.Spec
	hardware := spec.Hardware.Get()
	if len(spec.Tags) > 0 || hardware.Agent != nil || hardware.Startup != nil || (vm.Template != nil && vm.Template.Protected()) {
		required = append(required, "VM.Config.Options")
	}
	if len(spec.SecurityGroups) > 0 || vm.hasNICs() {
		required = append(required, "VM.Config.Network")
	}
	return OnVM(spec.ResourcePool, append(required, vm.forBootDrive()...)...)
}

func (vm VM) hasNICs() bool {
	return vm.isTemplateHidden() || (vm.Template != nil && len(network.NICs(vm.Class, *vm.Template)) > 0)
}

// forBootDrive returns the privileges on the VM for its boot drive.
func (vm VM) forBootDrive() (required []string) {
	options := vm.Class.Spec.MetadataOptions
	if options.UsesCDROM() {
		required = append(required, "VM.Config.CDROM")
	}
	if vm.Template == nil {
		if vm.isTemplateHidden() {
			required = append(required, "VM.Config.Cloudinit", "VM.Config.CDROM")
		}
		return required
	}
	_, has := vm.Template.Drives().CloudInit()
	switch {
	case options.UsesCDROM() && has:
		// Removing the template's drive requires VM.Config.Cloudinit.
		return append(required, "VM.Config.Cloudinit")
	case options.UsesCloudInitDrive() && !has:
		return append(required, "VM.Config.Cloudinit", "VM.Config.CDROM")
	case options.UsesCloudInitDrive() && !vm.hasNICs():
		// With interfaces, VM.Config.Network allows setting the options too.
		return append(required, "VM.Config.Cloudinit")
	}
	return required
}

// onDisks returns the privileges on the storages of the disks: that of the class, else
// those of the template.
func (vm VM) onDisks() []Required {
	names := vm.selectedStorages()
	hasStorage := !vm.Class.Spec.BootDevice.StorageSelection().IsZero()
	if !hasStorage && vm.Template != nil {
		names = append(names, templateStorages(*vm.Template)...)
	} else if !hasStorage && vm.isTemplateHidden() {
		names = append(names, "")
	}
	if vm.Template != nil {
		if storage := vmconfig.AddedCloudInitStorage(vm.Class, *vm.Template); storage != "" {
			names = append(names, "/"+storage)
		}
	}
	if tpm := vm.Class.Spec.Hardware.Get().TPM; tpm != nil && tpm.Storage != "" {
		names = append(names, "/"+tpm.Storage)
	}
	var out []Required
	for _, name := range names {
		out = append(out, on("/storage"+name, "Datastore.AllocateSpace", "Datastore.Audit")...)
	}
	return out
}

// templateStorages returns the paths of the storages that clones of a template use.
func templateStorages(template proxmox.VMConfig) []string {
	var names []string
	for _, drive := range template.Drives().All() {
		if !drive.IsCDROM && !drive.IsCloudInit && drive.Storage != "" {
			names = append(names, "/"+drive.Storage)
		}
	}
	for _, slot := range []string{"efidisk0", "tpmstate0"} {
		if value, ok := template.Options[slot]; ok {
			names = append(names, "/"+proxmox.ParseDrive(slot, value).Storage)
		}
	}
	return names
}

// onBootDrive returns the privileges for uploading and deleting the boot drive. Deleting
// requires Datastore.Allocate.
func (vm VM) onBootDrive() []Required {
	if !vm.Class.Spec.MetadataOptions.IsRendered() {
		return nil
	}
	name := vm.Class.Spec.MetadataOptions.Storage
	if name == "" {
		name = vm.BootDriveStorage
	}
	if name == "" {
		return onHiddenStorages(vm.Snapshot.Facts.Permissions)
	}
	return on("/storage/"+name, imageFilePrivileges...)
}

// imageFilePrivileges are the privileges for writing, listing and deleting files of a
// storage, such as ISO images.
var imageFilePrivileges = []string{"Datastore.Allocate", "Datastore.AllocateTemplate", "Datastore.Audit"}

// onHiddenStorages returns the missing privileges if no storage is visible. The intended
// storage may be any with other privileges, or any that is denied.
func onHiddenStorages(held proxmox.Permissions) []Required {
	var out []Required
	for path := range held {
		isPartial := held.Has(path, "Datastore.AllocateTemplate") && !held.Has(path, "Datastore.Audit")
		if strings.HasPrefix(path, "/storage/") && (isPartial || held.IsDenied(path)) {
			out = append(out, on(path, imageFilePrivileges...)...)
		}
	}
	sortByPath(out)
	if len(out) == 0 && !held.HasBelow("/storage", "Datastore.Audit") {
		out = on("/storage", imageFilePrivileges...)
	}
	return out
}

// onDevices returns the privileges on bridges and mappings of the template's devices,
// which Proxmox checks again when cloning, and on the class's shares.
func (vm VM) onDevices() []Required {
	var out []Required
	for _, share := range vm.Class.Spec.Shares {
		out = append(out, on("/mapping/dir/"+share.Mapping, "Mapping.Use")...)
	}
	switch {
	case vm.Template != nil:
		out = append(out, forDevices(vm.Snapshot, vm.Host, *vm.Template)...)
		for _, nic := range network.NICs(vm.Class, *vm.Template) {
			out = append(out, forBridge(vm.Snapshot.Facts, vm.Host, nic.NIC)...)
		}
	case vm.isTemplateHidden():
		out = append(out, on("/sdn/zones", "SDN.Use")...)
	}
	sortByPath(out)
	return out
}

// forDevices returns the privileges for the bridges, mapped devices and CPU model of a
// configuration.
func forDevices(snapshot *observed.Snapshot, host string, config proxmox.VMConfig) []Required {
	var paths []string
	for _, mapping := range config.HostDevices().Directories() {
		paths = append(paths, "/mapping/dir/"+mapping)
	}
	for option, value := range config.Options {
		properties := proxmox.ParseProperties(value)
		switch kind := strings.TrimRight(option, "0123456789"); kind {
		case "hostpci", "usb":
			if mapping := properties.Value("mapping"); mapping != "" {
				paths = append(paths, "/mapping/"+map[string]string{"hostpci": "pci", "usb": "usb"}[kind]+"/"+mapping)
			}
		case "rng":
			// The key of the source is optional.
			if slices.ContainsFunc(properties, func(p proxmox.Property) bool { return p.Value == "/dev/hwrng" }) {
				paths = append(paths, "/mapping/hwrng")
			}
		case "cpu":
			model, _, _ := strings.Cut(strings.TrimPrefix(value, "cputype="), ",")
			if custom, ok := strings.CutPrefix(model, "custom-"); ok && snapshot.Version.AtLeast(9, 2) {
				// Before PVE 9.2, Sys.Audit on /nodes is sufficient, which is required anyway.
				paths = append(paths, "/mapping/cpu/"+custom)
			}
		}
	}
	var out []Required
	for _, path := range paths {
		out = append(out, on(path, "Mapping.Use")...)
	}
	for _, nic := range config.Network().NICs() {
		out = append(out, forBridge(snapshot.Facts, host, nic)...)
	}
	return out
}

// maxTrunkPaths is the number of VLANs in trunks up to which each is required. More are
// required on the bridge, which includes them.
const maxTrunkPaths = 16

// forBridge returns the privileges for the bridge and the VLANs of an interface.
func forBridge(facts *observed.Facts, host string, nic proxmox.NIC) []Required {
	path, ok := bridgePath(facts, host, nic)
	if !ok {
		return nil
	}
	vlans := network.TrunkVLANs(nic.Trunks)
	if nic.VLAN != 0 {
		vlans = append(vlans, nic.VLAN)
	}
	if len(vlans) == 0 || len(vlans) > maxTrunkPaths {
		return on(path, "SDN.Use")
	}
	var out []Required
	for _, vlan := range vlans {
		out = append(out, on(fmt.Sprintf("%s/%d", path, vlan), "SDN.Use")...)
	}
	return out
}

// bridgePath returns the ACL path of a bridge. The SDN zone of a vnet without SDN.Audit is
// unknown; Proxmox lists such a vnet on a Host only if it may be used.
func bridgePath(facts *observed.Facts, host string, nic proxmox.NIC) (string, bool) {
	if nic.Bridge == "" {
		return "", false
	}
	zone := "localnetwork"
	if vnet, ok := facts.VNets[nic.Bridge]; ok {
		zone = vnet.Zone
	} else if facts.Bridges[host][nic.Bridge].Type == "vnet" {
		return "", false
	}
	return "/sdn/zones/" + zone + "/" + nic.Bridge, true
}

func sortByPath(required []Required) {
	slices.SortFunc(required, func(a, b Required) int {
		return strings.Compare(a.Path+" "+a.Privilege, b.Path+" "+b.Privilege)
	})
}
