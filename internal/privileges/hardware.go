// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

// onHardware returns the privileges for spec.hardware that are not on the VM or a storage.
func (vm VM) onHardware() []Required {
	hardware := vm.Class.Spec.Hardware.Get()
	var out []Required
	for _, device := range hardware.PCI {
		out = append(out, on("/mapping/pci/"+device.Mapping, "Mapping.Use")...)
	}
	for _, device := range hardware.USB {
		out = append(out, on("/mapping/usb/"+device.Mapping, "Mapping.Use")...)
	}
	if hardware.RNG != nil && hardware.RNG.Source == "hwrng" {
		out = append(out, on("/mapping/hwrng", "Mapping.Use")...)
	}
	if hardware.Startup != nil {
		out = append(out, on("/", "Sys.Modify")...)
	}
	return out
}
