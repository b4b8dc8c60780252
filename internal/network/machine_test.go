// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

func machine(name string, addresses v1alpha1.MachineAddresses) v1alpha1.Machine {
	return v1alpha1.Machine{Name: name, Addresses: []v1alpha1.MachineAddresses{addresses}}
}

func TestNewLayoutInvalidMachines(t *testing.T) {
	t.Parallel()
	at := func(address string) v1alpha1.MachineAddresses {
		return v1alpha1.MachineAddresses{Interface: "net0", Address4: address}
	}
	for want, addresses := range map[string][]v1alpha1.MachineAddresses{
		"spec.machines[name=db-0].addresses[interface=net7].address4: the VMs have no interface net7": {{Interface: "net7", Address4: "10.0.0.5"}},
		"address4 is 10.0.1.5, want an address in 10.0.0.0/24 (spec.network.interfaces[0].address4)":  {at("10.0.1.5")},
		"which is the gateway of spec.network.interfaces[0].address4":                                 {at("10.0.0.1")},
		"is 10.0.0.255, which is the network or broadcast address of 10.0.0.0/24":                     {at("10.0.0.255")},
		"is 10.0.0.0, which is the network or broadcast address of 10.0.0.0/24":                       {at("10.0.0.0")},
		`"10.0.0.999" is not an address`:                                                              {at("10.0.0.999")},
		"the interface has no cidr for it":                                                            {{Interface: "net0", Address6: "fd00::1"}},
		"each address belongs to one machine":                                                         {at("10.0.0.5"), at("10.0.0.5")},
	} {
		with := class(pool4("net0", "10.0.0.0/24"))
		with.Spec.Network.Interfaces[0].Address4.Gateway = "10.0.0.1"
		for n, address := range addresses {
			with.Spec.Machines = append(with.Spec.Machines, machine(fmt.Sprint("db-", n), address))
		}
		NewWithT(t).Expect(network.NewLayout(with, template())).Error().To(MatchError(ContainSubstring(want)))
	}
}

// A machine has its address although it is outside the ranges, and although the pool is
// exhausted.
func TestAssignMachine(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	with := class(pool4("net0", "10.0.0.0/24"))
	with.Spec.Network.Interfaces[0].Address4.Ranges = []string{"10.0.0.9"}
	with.Spec.Network.Interfaces[0].Address4.Gateway = "10.0.0.1"
	with.Spec.Machines = []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.0.5"})}
	layout, err := network.NewLayout(with, template())
	g.Expect(err).NotTo(HaveOccurred())
	assigned, err := layout.Assign(network.Request{View: viewOf(nil), Region: "r", Host: "pve1", Key: "uid", Machine: with.Spec.Machines[0]})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(assigned.Interfaces["net0"].Address4.String()).To(Equal("10.0.0.5/24"))
	g.Expect(assigned.Interfaces["net0"].Gateway4.String()).To(Equal("10.0.0.1"))
}
