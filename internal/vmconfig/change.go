// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Desired is the VM that a clone is changed into.
type Desired struct {
	Name string
	VMID int
	// UUID is the SMBIOS UUID.
	UUID         string
	InstanceType string
	Cores        int
	MemoryMiB    int
	Tags         []string
	// MACs by interface.
	MACs map[string]string
	// Firewalled interfaces get the firewall bridge, the others keep the Template's setting.
	Firewalled []string
	// ISO is the volume of the boot drive; if empty, the Template's own drives stay.
	ISO string
	// CloudInit is what Proxmox writes to a cloud-init drive; nil if it writes none.
	CloudInit *CloudInit
	// Network holds the addresses of the interfaces.
	Network network.Assignment
	// Devices are PCI mappings, including those of the Template.
	Devices []string
	// Cells are the guest's NUMA cells; empty if the VM is not bound to cells of its Host.
	Cells  []Cell
	Shares []v1alpha1.Share
	// BootDisk are the options of the boot disk.
	BootDisk v1alpha1.DiskOptions
	// Disks are created in addition to the boot disk, on their Storage or else on that of the
	// boot disk.
	Disks []v1alpha1.Disk
	// Volumes are existing volumes of the Disks by name. The other Disks are created.
	Volumes map[string]string
	// HookScripts are in the notes since the clone. The Template must have the
	// hookscript that reads them.
	HookScripts []string
	// Hardware are the options of the class besides the size.
	Hardware v1alpha1.Hardware
}

// Cell is a NUMA cell of the guest, bound to a cell of the Host.
type Cell struct {
	HostCell  int   `json:"cell"`
	VCPUs     int   `json:"vcpus"`
	MemoryMiB int64 `json:"memoryMiB"`
}

// Change returns the change that turns a clone into the desired VM. It is a single
// write, so a VM is either an unchanged clone or complete. It fails if the Template
// lacks something that the VM needs.
func Change(clone proxmox.VMConfig, want Desired) (proxmox.ConfigChange, error) {
	b := &builder{clone: clone, want: want, set: map[string]string{}}
	b.setBuses()
	b.setHardware()
	b.setOptions()
	b.setSMBIOS()
	if err := b.setNICs(); err != nil {
		return proxmox.ConfigChange{}, err
	}
	b.setAddresses()
	disk, ok := clone.Drives().Boot()
	if !ok {
		return proxmox.ConfigChange{}, fmt.Errorf("the template has no boot disk: its boot order %q names none, and it has none of virtio0, scsi0, sata0, ide0", strings.Join(clone.Drives().BootOrder(), ";"))
	}
	if err := b.setBootDisk(disk); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if err := b.addDevices(); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if err := b.addUSB(); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if err := b.addTPM(disk); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if err := b.addShares(); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if err := checkHookScripts(clone, want.HookScripts); err != nil {
		return proxmox.ConfigChange{}, err
	}
	if want.CloudInit != nil {
		if err := b.setCloudInit(disk); err != nil {
			return proxmox.ConfigChange{}, err
		}
	}
	if want.ISO != "" {
		if err := b.attachISO(disk); err != nil {
			return proxmox.ConfigChange{}, err
		}
	}
	if err := b.addDisks(disk); err != nil {
		return proxmox.ConfigChange{}, err
	}
	slices.Sort(b.remove)
	return proxmox.ConfigChange{Set: b.set, Delete: b.remove, Digest: clone.Digest}, nil
}

// builder collects the options to set and to remove.
type builder struct {
	clone  proxmox.VMConfig
	want   Desired
	set    map[string]string
	remove []string
}

func (b *builder) setHardware() {
	b.set["cores"] = strconv.Itoa(b.want.Cores)
	b.set["sockets"] = "1"
	b.set["memory"] = strconv.Itoa(b.want.MemoryMiB)
	// Kubernetes schedules with this memory: the balloon must not reclaim it.
	b.set["balloon"] = "0"
	if _, ok := b.clone.Options["vcpus"]; ok {
		// An inherited vcpus would hide some of the cores.
		b.remove = append(b.remove, "vcpus")
	}
	b.setCells()
	if b.clone.Options["protection"] == "1" {
		// A clone inherits its Template's protection. On a VM, protection means that
		// an administrator forbids its deletion.
		b.set["protection"] = "0"
	}
	if len(b.want.Tags) > 0 {
		b.set["tags"] = strings.Join(b.want.Tags, ";")
	}
}

// setCells writes the guest's NUMA cells: one socket per cell, so what the guest sees
// as a socket is a cell of the Host. Inherited cells are removed in any case: their
// memory does not fit, and the start would fail.
func (b *builder) setCells() {
	if cells := b.want.Cells; len(cells) > 0 {
		b.set["numa"] = "1"
		b.set["sockets"] = strconv.Itoa(len(cells))
		b.set["cores"] = strconv.Itoa(cells[0].VCPUs)
		first := 0
		for n, cell := range cells {
			vcpus := make([]int, cell.VCPUs)
			for i := range vcpus {
				vcpus[i] = first + i
			}
			first += cell.VCPUs
			b.set["numa"+strconv.Itoa(n)] = proxmox.NUMACell{
				CPUs: cpuset.New(vcpus...), HostCells: cpuset.New(cell.HostCell), MemoryMiB: int(cell.MemoryMiB), Policy: proxmox.PolicyBind,
			}.Encode()
		}
	}
	for _, slot := range b.clone.Compute().NUMASlots() {
		if _, kept := b.set[slot]; !kept {
			b.remove = append(b.remove, slot)
		}
	}
}

func (b *builder) setSMBIOS() {
	// smbios1 is one property string: fields that are not sent again are lost.
	bios := b.clone.SMBIOS()
	bios.UUID = b.want.UUID
	bios.SKU = b.want.InstanceType
	bios.Serial = SMBIOSSerial(b.want.Name, b.want.VMID)
	b.set["smbios1"] = bios.Encode()
}

// SMBIOSSerial returns the SMBIOS serial of a VM. The Proxmox cloud controller manager
// and boot data templates read it.
func SMBIOSSerial(name string, vmid int) string { return fmt.Sprintf("h=%s;i=%d", name, vmid) }

// IsConfigured reports whether the change was applied to a VM: it is one write, so
// the SMBIOS serial is sufficient. A clone inherits that of its template, which may have been
// the VM of a Node.
func IsConfigured(cfg proxmox.VMConfig, vmid int) bool {
	serial := cfg.SMBIOS().Serial
	return strings.HasPrefix(serial, "h=") && strings.HasSuffix(serial, fmt.Sprintf(";i=%d", vmid))
}

// CheckTemplate returns an error if VMs of a class cannot be made of a Template: it
// needs a boot disk, a slot for the boot drive, and the interfaces that the class names.
func CheckTemplate(template proxmox.VMConfig, class *v1alpha1.ProxmoxNodeClass) error {
	want := Desired{
		Cores: 1, MemoryMiB: 1024, CloudInit: NewCloudInit(class), Firewalled: FirewalledInterfaces(class), Network: network.Devices(class),
		BootDisk: class.Spec.BootDevice.DiskOptions, Disks: class.Spec.Disks, Hardware: class.Spec.Hardware.Get(),
	}
	for _, device := range want.Hardware.PCI {
		if device.MDev == "" {
			want.Devices = append(want.Devices, device.Mapping)
		}
	}
	if class.Spec.MetadataOptions.UsesCDROM() {
		want.ISO = "storage:iso/sample.iso"
	}
	_, err := Change(template, want)
	return err
}
