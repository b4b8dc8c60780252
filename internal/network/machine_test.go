// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

func machine(name string, addresses ...v1alpha1.MachineAddresses) v1alpha1.Machine {
	return v1alpha1.Machine{Name: name, Addresses: addresses}
}

func TestNewLayoutInvalidMachines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		machines []v1alpha1.Machine
		want     string
	}{
		"unknown_interface": {
			machines: []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net7", Address4: "10.0.0.5"})},
			want:     "spec.machines[name=db-1].addresses[interface=net7].address4: the VMs have no interface net7",
		},
		"outside_the_subnet": {
			machines: []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.1.5"})},
			want:     "spec.machines[name=db-1].addresses[interface=net0].address4 is 10.0.1.5, want an address in 10.0.0.0/24 (spec.network.interfaces[0].address4)",
		},
		"gateway": {
			machines: []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.0.1"})},
			want:     "which is the gateway of spec.network.interfaces[0].address4",
		},
		"broadcast": {
			machines: []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.0.255"})},
			want:     "is 10.0.0.255, which is the network or broadcast address of 10.0.0.0/24",
		},
		"network": {
			machines: []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.0.0"})},
			want:     "is 10.0.0.0, which is the network or broadcast address of 10.0.0.0/24",
		},
		"no_address": {
			machines: []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.0.999"})},
			want:     `"10.0.0.999" is not an address`,
		},
		"no_subnet": {
			machines: []v1alpha1.Machine{machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address6: "fd00::1"})},
			want:     "the interface has no cidr for it",
		},
		"same_address": {
			machines: []v1alpha1.Machine{
				machine("db-1", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.0.5"}),
				machine("db-2", v1alpha1.MachineAddresses{Interface: "net0", Address4: "10.0.0.5"}),
			},
			want: "each address belongs to one machine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			with := class(pool4("net0", "10.0.0.0/24"))
			with.Spec.Network.Interfaces[0].Address4.Gateway = "10.0.0.1"
			with.Spec.Machines = c.machines
			NewWithT(t).Expect(network.NewLayout(with, template())).Error().To(MatchError(ContainSubstring(c.want)))
		})
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
