// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// The order and the number of interfaces, PCI devices and name servers are written to the template.
func TestTemplateHashLists(t *testing.T) {
	t.Parallel()

	type change func(*templateSpec)

	network := func(nics ...v1alpha1.NetworkInterface) change {
		return func(s *templateSpec) { s.Network = nics }
	}
	servers := func(addresses ...string) change {
		return network(v1alpha1.NetworkInterface{Bridge: "vmbr0", DNSServers: addresses})
	}
	devices := func(mappings ...string) change {
		return func(s *templateSpec) {
			for _, mapping := range mappings {
				s.PCIDevices = append(s.PCIDevices, v1alpha1.PCIDevice{Mapping: mapping})
			}
		}
	}
	lan, storage := v1alpha1.NetworkInterface{Bridge: "vmbr0"}, v1alpha1.NetworkInterface{Bridge: "vmbr1"}

	for name, test := range map[string]struct {
		before, after change
		effect        effect
	}{
		"order_of_interfaces":   {network(lan, storage), network(storage, lan), updates},
		"number_of_interfaces":  {network(storage), network(storage, lan, lan), updates},
		"order_of_PCI_devices":  {devices("gpu", "nic"), devices("nic", "gpu"), updates},
		"number_of_PCI_devices": {devices(), devices("gpu", "gpu"), updates},
		"order_of_DNS_servers":  {servers("192.0.2.1", "192.0.2.2"), servers("192.0.2.2", "192.0.2.1"), updates},
		"number_of_DNS_servers": {servers("192.0.2.1"), servers("192.0.2.1", "192.0.2.2", "192.0.2.2"), updates},
		"unchanged":             {network(lan, storage), network(lan, storage), neither},
	} {
		before, after := managedTemplate(), managedTemplate()
		test.before(&before.Spec)
		test.after(&after.Spec)
		test.effect.check(t, name, before, after)
	}
}

// The number of equal PCI devices counts, their order does not.
func TestNodeClassHashLists(t *testing.T) {
	t.Parallel()

	devices := func(mappings ...string) *v1alpha1.ProxmoxNodeClass {
		class := nodeClass()
		class.Spec.Hardware = &v1alpha1.Hardware{CPULimit: new(int32(2))}

		for _, mapping := range mappings {
			class.Spec.Hardware.PCI = append(class.Spec.Hardware.PCI, v1alpha1.PCIDevice{Mapping: mapping, PCIe: new(true)})
		}

		return class
	}
	interfaces := func(class *v1alpha1.ProxmoxNodeClass) *v1alpha1.ProxmoxNodeClass {
		class.Spec.Network = &v1alpha1.Network{Interfaces: []nic{{Name: "net1", InterfaceDevice: device{Bridge: "vmbr1"}}}}
		return class
	}

	for name, test := range map[string]struct {
		before, after *v1alpha1.ProxmoxNodeClass
		effect        effect
	}{
		"other_equal_devices":     {devices("gpu", "gpu"), devices("nic", "nic"), replaces},
		"two_to_four":             {devices("gpu", "gpu"), devices("gpu", "gpu", "gpu", "gpu"), replaces},
		"one_to_three":            {devices("gpu"), devices("gpu", "gpu", "gpu"), replaces},
		"none_to_two":             {devices(), devices("gpu", "gpu"), replaces},
		"with_interfaces":         {interfaces(devices("gpu", "gpu")), interfaces(devices("nic", "nic")), replaces},
		"order":                   {devices("gpu", "nic"), devices("nic", "gpu"), neither},
		"order_with_equal_ones":   {devices("gpu", "gpu", "nic"), devices("nic", "gpu", "gpu"), neither},
		"unchanged_equal_devices": {devices("gpu", "gpu"), devices("gpu", "gpu"), neither},
	} {
		test.effect.check(t, name, test.before, test.after)
	}
}
