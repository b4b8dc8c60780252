// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"regexp"
	"strings"
)

// HostDevices are the devices and directories of the Host that a VM uses.
type HostDevices struct{ options map[string]string }

// HostPCI is a device that is passed through to a VM, "hostpciN" in its config.
type HostPCI struct {
	Slot string
	// Mapping is the resource mapping that provides the device; empty if the device
	// is given by its address.
	Mapping string
	// Paths are addresses, as in PCIDevice, if no mapping is used.
	Paths []string
	// Mediated is the type of a mediated device; empty for a whole device.
	Mediated string
}

var (
	pciSlot       = regexp.MustCompile(`^hostpci(\d{1,2})$`)
	directorySlot = regexp.MustCompile(`^virtiofs(\d)$`)
)

// PCI returns the passed-through PCI devices sorted by slot.
func (d HostDevices) PCI() []HostPCI {
	var devices []HostPCI
	for _, slot := range slots(d.options, pciSlot) {
		p := ParseProperties(d.options[slot])
		device := HostPCI{Slot: slot, Mapping: p.Value("mapping"), Mediated: p.Value("mdev")}
		for path := range strings.SplitSeq(p.defaultValue("host"), ";") {
			if path == "" {
				continue
			}
			if strings.Count(path, ":") == 1 {
				path = "0000:" + path // the domain is optional
			}
			device.Paths = append(device.Paths, path)
		}
		devices = append(devices, device)
	}
	return devices
}

// Directories returns the IDs of the directory mappings that the VM shares by
// virtiofs, sorted by slot.
func (d HostDevices) Directories() []string {
	var ids []string
	for _, slot := range slots(d.options, directorySlot) {
		ids = append(ids, ParseProperties(d.options[slot]).defaultValue("dirid"))
	}
	return ids
}
