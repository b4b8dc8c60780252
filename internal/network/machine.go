// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// machineAddresses returns the fixed addresses of an interface of a machine.
func machineAddresses(machine v1alpha1.Machine, slot string) v1alpha1.MachineAddresses {
	i := slices.IndexFunc(machine.Addresses, func(a v1alpha1.MachineAddresses) bool { return a.Interface == slot })
	if i < 0 {
		return v1alpha1.MachineAddresses{}
	}
	return machine.Addresses[i]
}

// setFixed marks the sources that each machine of the class has a fixed address for.
func setFixed(class *v1alpha1.ProxmoxNodeClass, interfaces []Interface) {
	if len(class.Spec.Machines) == 0 {
		return
	}
	for n := range interfaces {
		i := &interfaces[n]
		i.V4.Fixed, i.V6.Fixed = i.V4.Pool != nil, i.V6.Pool != nil
		for _, machine := range class.Spec.Machines {
			own := machineAddresses(machine, i.Slot)
			i.V4.Fixed, i.V6.Fixed = i.V4.Fixed && own.Address4 != "", i.V6.Fixed && own.Address6 != ""
		}
	}
}

// checkFixed returns the fixed address of a machine, or an error if another guest has it.
func (r Request) checkFixed(s Source, text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil || !s.Pool.Subnet().Contains(address) {
		return netip.Addr{}, fmt.Errorf("address %s of machine %s is not in %s (%s)", text, r.Machine.Name, s.From, s.Pool.Subnet())
	}
	if owner, taken := r.View.Addresses().Owner(address); taken {
		return netip.Addr{}, fmt.Errorf("address %s of machine %s is taken by %s", address, r.Machine.Name, owner)
	}
	return address, nil
}

// invalidMachines returns an error for each address of a machine that no interface can
// have, and for each that two machines have.
func invalidMachines(class *v1alpha1.ProxmoxNodeClass, interfaces []Interface) []error {
	var errs []error
	owners := map[netip.Addr]string{}
	for _, machine := range class.Spec.Machines {
		for _, want := range machine.Addresses {
			found := slices.IndexFunc(interfaces, func(i Interface) bool { return i.Slot == want.Interface })
			for _, family := range []struct{ name, text string }{{"address4", want.Address4}, {"address6", want.Address6}} {
				if family.text == "" {
					continue
				}
				field := fmt.Sprintf("spec.machines[name=%s].addresses[interface=%s].%s", machine.Name, want.Interface, family.name)
				if found < 0 {
					errs = append(errs, fmt.Errorf("%s: the VMs have no interface %s", field, want.Interface))
					continue
				}
				source := map[string]Source{"address4": interfaces[found].V4, "address6": interfaces[found].V6}[family.name]
				if err := checkMachineAddress(field, family.text, source, owners); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	return errs
}

// checkMachineAddress checks an address of a machine, and adds it to the owners.
func checkMachineAddress(field, text string, source Source, owners map[netip.Addr]string) error {
	address, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return fmt.Errorf("%s %q is not an address", field, text)
	case source.Pool == nil:
		return fmt.Errorf("%s is %s, but the interface has no cidr for it: set one in spec.network.interfaces, or in the template", field, text)
	case !source.Pool.Subnet().Contains(address):
		return fmt.Errorf("%s is %s, want an address in %s (%s)", field, text, source.Pool.Subnet(), source.From)
	case source.Pool.IsReserved(address):
		return fmt.Errorf("%s is %s, which is the network or broadcast address of %s", field, text, source.Pool.Subnet())
	case address == source.Pool.Gateway():
		return fmt.Errorf("%s is %s, which is the gateway of %s", field, text, source.From)
	case owners[address] != "":
		return fmt.Errorf("%s is %s, which %s has too: each address belongs to one machine", field, text, owners[address])
	}
	owners[address] = field
	return nil
}
