// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// maxDevices is the number of hostpci slots.
const maxDevices = 16

// addDevices adds a device of each mapping that the Template does not have. Devices that
// the class lists get its settings. Mediated devices are not planned, so they are not in
// want.Devices.
func (b *builder) addDevices() error {
	missing, settings := slices.Clone(b.want.Devices), slices.Clone(b.want.Hardware.PCI)
	used := map[string]bool{}
	for _, device := range b.clone.HostDevices().PCI() {
		used[device.Slot] = true
		if n := slices.Index(missing, device.Mapping); n >= 0 {
			missing = slices.Delete(missing, n, n+1)
		}
		if setting, ok := takeSetting(&settings, device.Mapping); ok {
			b.set[device.Slot] = PCIProperties(proxmox.ParseProperties(b.clone.Options[device.Slot]), setting).Encode()
		}
	}
	for _, setting := range settings {
		if setting.MDev != "" {
			missing = append(missing, setting.Mapping)
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
		setting, ok := takeSetting(&settings, missing[0])
		if !ok {
			setting.Mapping = missing[0]
		}
		if setting.PCIe == nil && strings.Contains(b.clone.Options["machine"], "q35") {
			setting.PCIe = new(true) // other machine types have no PCIe slots, and the start would fail
		}
		b.set[slot], missing = PCIProperties(nil, setting).Encode(), missing[1:]
	}
	return nil
}

// takeSetting removes and returns the first device of a mapping.
func takeSetting(settings *[]v1alpha1.PCIDevice, mapping string) (v1alpha1.PCIDevice, bool) {
	n := slices.IndexFunc(*settings, func(d v1alpha1.PCIDevice) bool { return d.Mapping == mapping })
	if n < 0 {
		return v1alpha1.PCIDevice{}, false
	}
	setting := (*settings)[n]
	*settings = slices.Delete(*settings, n, n+1)
	return setting, true
}
