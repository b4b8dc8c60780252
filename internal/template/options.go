// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// cloudInitSlot is the slot of the cloud-init drive: that of a boot drive on the bus of
// the disk.
const cloudInitSlot = vmconfig.SCSIBootDriveSlot

// The size and boot order of a Template. A launch sets those of the VM.
const (
	templateBootOrder = "order=scsi0"
	templateCores     = "1"
	templateMemory    = "1024"
)

// inPlaceOptions returns the VM options that are updated in place when the spec changes.
func inPlaceOptions(desired Desired, location Location) map[string]string {
	spec := desired.Spec
	options := map[string]string{"machine": spec.Machine, "cpu": cpu(spec.CPU)}
	if spec.Agent != nil {
		options["agent"] = vmconfig.AgentProperties(nil, *spec.Agent).Encode()
	}
	if spec.VGA != nil {
		options["vga"] = vga(*spec.VGA)
		if spec.VGA.Type == "serial0" {
			options["serial0"] = "socket"
		}
	}
	var servers []string
	names := interfaceNames(spec.Network)
	for n, nic := range spec.Network {
		name := names[n]
		options[name] = encodeNIC(nic)
		if addresses := addresses(nic); addresses != "" {
			options["ipconfig"+strings.TrimPrefix(name, "net")] = addresses
		}
		servers = append(servers, nic.DNSServers...)
	}
	if len(servers) > 0 {
		options["nameserver"] = strings.Join(servers, " ")
	}
	for n, device := range spec.PCIDevices {
		options["hostpci"+strconv.Itoa(n)] = vmconfig.PCIProperties(nil, device).Encode()
	}
	if spec.OnBoot != nil {
		options["onboot"] = proxmox.EncodeBool(*spec.OnBoot)
	}
	if len(spec.Tags) > 0 {
		options["tags"] = strings.Join(spec.Tags, ";")
	}
	if desired.CloudInit {
		options[cloudInitSlot] = location.Storage + ":cloudinit"
	}
	return options
}

// interfaceNames returns the name of each interface in Proxmox. The default is that of its
// position, or if another interface has this name, the lowest free one.
func interfaceNames(nics []v1alpha1.NetworkInterface) []string {
	names, taken := make([]string, len(nics)), map[string]bool{}
	for n, nic := range nics {
		names[n], taken[nic.Name] = nic.Name, true
	}
	assign := func(n, number int) {
		if name := "net" + strconv.Itoa(number); names[n] == "" && !taken[name] {
			names[n], taken[name] = name, true
		}
	}
	for n := range names {
		assign(n, n)
	}
	for n := range names {
		for number := range names {
			assign(n, number)
		}
	}
	return names
}

// managedOption matches the options that are deleted if the spec does not set them.
var managedOption = regexp.MustCompile(`^(net|ipconfig|hostpci|serial)[0-9]+$|^(agent|vga|nameserver|onboot|tags)$`)

// createOptions returns the options of a new VM. Tags are not included: for these PVE
// 9.2 checks a privilege on the VM itself before the VM is in its pool, so they are
// written afterwards.
func createOptions(desired Desired, location Location, volume string, mark ownership.Mark) map[string]string {
	options := inPlaceOptions(desired, location)
	delete(options, "tags")
	disk := location.Storage + ":0,import-from=" + volume + ",discard=on,iothread=1"
	for option, value := range map[string]string{
		"name": desired.Name, "description": notes(desired, mark), "ostype": "l26", "scsihw": "virtio-scsi-single", "bios": desired.Spec.BIOS,
		"scsi0": disk, "boot": templateBootOrder, "cores": templateCores, "sockets": "1", "numa": "1", "memory": templateMemory, "balloon": "0",
	} {
		if value != "" {
			options[option] = value
		}
	}
	if desired.Spec.BIOS == "ovmf" {
		// Without enrolled keys, because not every image has a signed boot loader.
		options["efidisk0"] = location.Storage + ":1,efitype=4m,pre-enrolled-keys=0"
	}
	if desired.Spec.TPM != nil {
		options["tpmstate0"] = location.Storage + ":1,version=" + desired.Spec.TPM.Version
	}
	if mark.Builder != nil {
		setBuilderOptions(options, desired.Spec.Prepare)
	}
	return options
}

func notes(desired Desired, mark ownership.Mark) string {
	text := desired.Spec.Description
	if text == "" {
		text = "Karpenter managed template, made from " + desired.Spec.SourceImage.String()
	}
	return mark.Notes(text)
}

// newConfigChange returns the change from a configuration to the desired one.
func newConfigChange(desired Desired, location Location, config proxmox.VMConfig, mark ownership.Mark) proxmox.ConfigChange {
	c := proxmox.ConfigChange{Set: inPlaceOptions(desired, location), Digest: config.Digest}
	if drive, ok := config.Drives().CloudInit(); ok {
		// Earlier releases added it to ide2.
		if desired.CloudInit {
			delete(c.Set, cloudInitSlot) // setting it again would recreate the drive
		} else {
			c.Delete = append(c.Delete, drive.Slot)
		}
	}
	for option := range config.Options {
		if _, set := c.Set[option]; !set && managedOption.MatchString(option) {
			c.Delete = append(c.Delete, option)
		}
	}
	slices.Sort(c.Delete)
	c.Set["description"] = notes(desired, mark)
	return c
}

func cpu(c v1alpha1.CPU) string {
	if len(c.Flags) == 0 {
		return c.Type
	}
	return c.Type + ",flags=" + strings.Join(c.Flags, ";")
}

func vga(v v1alpha1.VGA) string {
	if v.Memory == nil {
		return v.Type
	}
	return fmt.Sprintf("%s,memory=%d", v.Type, *v.Memory)
}

// defaultMTU is the default of a guest. It is not set because Proxmox would compare it
// with the MTU of the bridge.
const defaultMTU = 1500

func encodeNIC(n v1alpha1.NetworkInterface) string {
	out := n.Model + ",bridge=" + n.Bridge
	if n.Firewall != nil {
		out += ",firewall=" + proxmox.EncodeBool(*n.Firewall)
	}
	if n.MTU != 0 && n.MTU != defaultMTU && n.Model == "virtio" {
		out += fmt.Sprintf(",mtu=%d", n.MTU)
	}
	if n.VLAN != 0 {
		out += fmt.Sprintf(",tag=%d", n.VLAN)
	}
	return out
}

func addresses(n v1alpha1.NetworkInterface) string {
	var parts []string
	for _, part := range [][2]string{{"ip", n.Address4}, {"gw", n.Gateway4}, {"ip6", n.Address6}, {"gw6", n.Gateway6}} {
		if part[1] != "" {
			parts = append(parts, part[0]+"="+part[1])
		}
	}
	return strings.Join(parts, ",")
}
