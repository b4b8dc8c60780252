// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// defaultCPUType is the CPU type that Proxmox uses if the configuration has none.
const defaultCPUType = "kvm64"

// zone is a Host with its template for one NodeClass.
type zone struct {
	nodeLabels
	// template is the VMID to clone from; 0 if the class has no template on the Host.
	template int
	// ready is set if the view contains the template with its configuration, which a
	// launch needs.
	ready bool
	// guest is the key of VMs in status.memoryOverhead; zero until it is known.
	guest guestKey
	// storage of the boot disk; empty until it is known.
	storage string
	// disks are the storages that the disks may use; nil if there is only the boot disk, and
	// it is on the storage above.
	disks *placement.Disks
	// excludedReason is why the NodeClass excludes the Host.
	excludedReason string
	// exhaustedReason is why no address is free for a VM on the Host, or no machine is on it.
	exhaustedReason string
	// devices are the PCI mappings of the template and the class, joined by commas.
	devices     string
	priceFactor float64
	// asleep: the Host was shut down to save energy, and is woken for a VM.
	asleep bool
	// pinning is how VMs can be pinned on the Host.
	pinning placement.PinningSupport
}

// newZone returns a zone without a template.
func newZone(view inventory.View, key placement.Zone) zone {
	z := zone{nodeLabels: nodeLabels{Zone: key}, priceFactor: declared.DefaultPriceFactor}
	if host, ok := view.Host(key.Region, key.Host); ok {
		z.arch, z.priceFactor, z.asleep = host.Arch, host.PriceFactor*energyFactor(host), host.Sleep != ""
	}
	return z
}

// withTemplate sets the template and what the view contains about it.
func (z zone) withTemplate(vmid int, view inventory.View, c classInput) zone {
	z.template, z.storage = vmid, c.Spec.BootDevice.Storage
	guest, _ := view.Guest(z.Region, z.template)
	z.disks, z.excludedReason = c.findStorages(view.Snapshots[z.Region], z.Host, guest.Host)
	if guest.Config == nil || !guest.Config.IsTemplate() {
		return z
	}
	z.ready = true
	z.cpuType = cpuTypeOf(*guest.Config)
	z.image = ownership.ImageLabel(z.template, *guest.Config)
	z.guest = templateKey(z.template, *guest.Config)
	z.os = osOf(*guest.Config)
	z.devices = fixedDevices(*guest.Config, c.Spec.Hardware.Get().PCI)
	if guest.Config.Options["arch"] == "aarch64" {
		z.arch = karpv1.ArchitectureArm64
	}
	if disk, ok := guest.Config.Drives().Boot(); ok {
		z.storage = cmp.Or(z.storage, disk.Storage)
	}
	return z
}

// labelsOf returns the values of the labels of a Node of the type in the zone. The zone itself has no
// capacity type.
func (z zone) labelsOf(t Type) nodeLabels {
	labels := z.nodeLabels
	labels.capacityType = t.capacityType()
	return labels
}

// osOf derives the operating system from the template's ostype: w2k, wxp, win7 and so on
// are Windows, all others Linux.
func osOf(config proxmox.VMConfig) string {
	if strings.HasPrefix(config.Options["ostype"], "w") {
		return string(corev1.Windows)
	}
	return string(corev1.Linux)
}

// cpuTypeOf returns the CPU type of a VM.
func cpuTypeOf(config proxmox.VMConfig) string {
	return bareProperty(config.Options["cpu"], "cputype", defaultCPUType)
}

// bareProperty returns the property whose key may be omitted: "host", "host,flags=+aes" and
// "cputype=host,flags=+aes" have the same cputype.
func bareProperty(option, key, fallback string) string {
	for _, property := range proxmox.ParseProperties(option) {
		if property.Bare || property.Key == key {
			return property.Value
		}
	}
	return fallback
}

// blockedReason returns why the class cannot have a VM in the zone, regardless of
// capacity and failures; empty if it can.
func (z zone) blockedReason() string {
	switch {
	case z.excludedReason != "":
		return z.excludedReason
	case z.template == 0:
		return "the NodeClass has no template on this host"
	case !z.ready:
		return fmt.Sprintf("template %d does not exist, or its configuration could not be read", z.template)
	}
	return ""
}

// inherited returns the PCI mappings of the zone's template and the class.
func (z zone) inherited() []string {
	if z.devices == "" {
		return nil
	}
	return strings.Split(z.devices, ",")
}
