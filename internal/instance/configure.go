// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// shape is what the one configuration write makes of a fresh clone.
type shape struct {
	name         string
	id           Identity
	instanceType string
	cores        int
	memoryMiB    int
	tags         []string
	macs         map[string]string
	// firewalled interfaces get the firewall bridge, the others keep what the
	// Template says.
	firewalled []string
	// iso is the boot drive's volume; empty = the Template's own drives stay.
	iso string
	// cloudInit is what Proxmox puts on a drive of its own; nil where it makes none.
	cloudInit *cloudInit
	// network is what the interfaces were given.
	network network.Assignment
	// devices are PCI mappings, those of the Template included.
	devices []string
	// binding to cells of the Host; nil where the VM floats.
	binding *Binding
	shares  []v1alpha1.Share
	// hooks are in the notes since the clone; the Template must bring what reads them.
	hooks []string
}

// maxQueues is Proxmox's limit for a NIC.
const maxQueues = 64

// bootDriveSlots are tried in this order: cloud images look at IDE first, and
// q35 machines have all four IDE slots as well.
var bootDriveSlots = []string{"ide2", "ide0", "ide1", "ide3", "sata5", "sata4", "sata3", "sata2", "sata1", "sata0"}

// configure computes the write that turns a clone into the VM that was asked
// for. It is one write, so that a VM is either still a bare clone or complete.
func configure(cfg proxmox.VMConfig, want shape) (proxmox.ConfigChange, error) {
	set := map[string]string{
		"cores":   strconv.Itoa(want.cores),
		"sockets": "1",
		"memory":  strconv.Itoa(want.memoryMiB),
		// The scheduler was promised this memory: the balloon must not take it back.
		"balloon": "0",
	}
	var remove []string
	if _, ok := cfg.Options["vcpus"]; ok {
		// An inherited vcpus would hide some of the cores.
		remove = append(remove, "vcpus")
	}
	remove = append(remove, layOut(cfg, want.binding, set)...)
	if cfg.Options["protection"] == "1" {
		// A protected Template passes its protection on; on a VM it means that an
		// admin vetoes its removal.
		set["protection"] = "0"
	}
	if len(want.tags) > 0 {
		set["tags"] = strings.Join(want.tags, ";")
	}

	// smbios1 is one property string: what is not sent again is lost.
	bios := cfg.SMBIOS()
	bios.UUID = want.id.ClaimUID
	bios.SKU = want.instanceType
	bios.Serial = smbiosSerial(want.name, want.id.VMID)
	set["smbios1"] = bios.Encode()

	if err := plugIn(cfg, want, set); err != nil {
		return proxmox.ConfigChange{}, err
	}
	addressOptions(cfg, want, set)

	disk, ok := cfg.Drives().Boot()
	if !ok {
		return proxmox.ConfigChange{}, fmt.Errorf("the template has no boot disk: its boot order %q names none, and it has none of virtio0, scsi0, sata0, ide0", strings.Join(cfg.Drives().BootOrder(), ";"))
	}
	// A node is cattle: its disk is neither backed up nor replicated.
	disk.Properties = disk.Properties.With("backup", "0").With("replicate", "0")
	set[disk.Slot] = disk.Encode()

	if err := passThrough(cfg, want.devices, set); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if err := share(cfg, want.shares, set); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if err := hooked(cfg, want.hooks); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if want.cloudInit != nil {
		if err := want.cloudInit.write(cfg, disk, set); err != nil {
			return proxmox.ConfigChange{}, err
		}
	}
	if want.iso != "" {
		slot, gone, err := bootDrive(cfg)
		if err != nil {
			return proxmox.ConfigChange{}, err
		}
		set[slot] = want.iso + ",media=cdrom"
		set["boot"] = "order=" + strings.Join(bootOrder(cfg, disk.Slot, slot, gone), ";")
		for _, drive := range gone {
			if drive != slot {
				remove = append(remove, drive)
			}
		}
	}
	slices.Sort(remove)
	return proxmox.ConfigChange{Set: set, Delete: remove, Digest: cfg.Digest}, nil
}

// plugIn gives the interfaces their addresses on the wire, their queues and the
// firewall bridge.
func plugIn(cfg proxmox.VMConfig, want shape, set map[string]string) error {
	for _, nic := range cfg.Network().NICs() {
		if mac, ok := want.macs[nic.Slot]; ok {
			nic.MAC = mac
		}
		if nic.Model == "virtio" {
			nic.Queues = min(want.cores, maxQueues)
		}
		if slices.Contains(want.firewalled, nic.Slot) {
			nic.Firewall = true
		}
		set[nic.Slot] = nic.Encode()
	}
	for _, slot := range want.firewalled {
		if _, ok := set[slot]; !ok {
			return fmt.Errorf("a security group names interface %s, but the template has none of that name", slot)
		}
	}
	return nil
}

// addressOptions writes what the VM was given where others see it: Proxmox keeps
// ipconfigN without a cloud-init drive as well. What the Template says already, and
// interfaces that use DHCP by default, are left alone; but a cloud-init drive that
// Proxmox fills has no word about an interface without ipconfigN.
func addressOptions(cfg proxmox.VMConfig, want shape, set map[string]string) {
	for slot, given := range want.network.Interfaces {
		option, value := proxmox.IPConfigSlot(slot), given.IPConfig().Encode()
		_, inherited := cfg.Options[option]
		special := given.Address4.IsValid() || given.Address6.IsValid() || given.SLAAC || given.DHCP6
		if value != "" && value != cfg.Options[option] && (inherited || special || want.cloudInit != nil) {
			set[option] = value
		}
	}
	for option, list := range map[string][]string{"nameserver": want.network.DNS, "searchdomain": want.network.Search} {
		if value := strings.Join(list, " "); value != "" && value != cfg.Options[option] {
			set[option] = value
		}
	}
}

// maxDevices is the number of hostpci slots.
const maxDevices = 16

// passThrough adds a device of each mapping that the Template does not bring along.
func passThrough(cfg proxmox.VMConfig, mappings []string, set map[string]string) error {
	missing := slices.Clone(mappings)
	used := map[string]bool{}
	for _, device := range cfg.HostDevices().PCI() {
		used[device.Slot] = true
		if n := slices.Index(missing, device.Mapping); n >= 0 {
			missing = slices.Delete(missing, n, n+1)
		}
	}
	for n := 0; len(missing) > 0; n++ {
		if n == maxDevices {
			return fmt.Errorf("the template leaves too few of %d PCI slots for devices of %s", maxDevices, strings.Join(missing, ", "))
		}
		slot := "hostpci" + strconv.Itoa(n)
		if used[slot] {
			continue
		}
		value := "mapping=" + missing[0]
		if strings.Contains(cfg.Options["machine"], "q35") {
			value += ",pcie=1" // other machines have no PCIe slots, and the start would fail
		}
		set[slot], missing = value, missing[1:]
	}
	return nil
}

// CheckTemplate tells whether VMs of a class can be made of a Template: it has a boot
// disk, a slot for the boot drive, and the interfaces that the class names.
func CheckTemplate(cfg proxmox.VMConfig, class *v1alpha1.ProxmoxNodeClass) error {
	want := shape{cores: 1, memoryMiB: 1024, cloudInit: cloudInitOf(class)}
	for _, group := range class.Spec.SecurityGroups {
		want.firewalled = append(want.firewalled, group.Interface)
	}
	if class.Spec.MetadataOptions.CDROM() {
		want.iso = "storage:iso/sample.iso"
	}
	_, err := configure(cfg, want)
	return err
}

// bootDrive picks the slot for our ISO and names the inherited cloud-init drives
// that must go: a guest with two cidata drives may read the wrong one.
func bootDrive(cfg proxmox.VMConfig) (slot string, gone []string, err error) {
	used := map[string]bool{}
	for _, drive := range cfg.Drives().All() {
		if drive.IsCloudInit {
			gone = append(gone, drive.Slot)
			continue
		}
		used[drive.Slot] = true
	}
	for _, candidate := range bootDriveSlots {
		if !used[candidate] {
			return candidate, gone, nil
		}
	}
	return "", nil, fmt.Errorf("the template has no free IDE or SATA slot for the boot drive")
}

// bootOrder keeps the Template's order and puts the boot drive last: Proxmox
// would append it anyway, and a drive that is not in the order of a running VM
// cannot be detached without leaving a pending change.
func bootOrder(cfg proxmox.VMConfig, disk, iso string, gone []string) []string {
	order := slices.DeleteFunc(slices.Clone(cfg.Drives().BootOrder()), func(slot string) bool {
		return slot == iso || slices.Contains(gone, slot)
	})
	if len(order) == 0 {
		order = []string{disk}
	}
	return append(order, iso)
}
