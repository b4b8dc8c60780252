// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// maxQueues is Proxmox's limit for a NIC.
const maxQueues = 64

// setNICs adds the interfaces of the class, and sets MAC addresses, queues, the firewall
// bridge and what else the class sets.
func (b *builder) setNICs() error {
	nics := b.clone.Network().NICs()
	for slot, assigned := range b.want.Network.Interfaces {
		if _, inherited := b.clone.Options[slot]; !inherited && assigned.Device.Bridge != "" {
			nics = append(nics, proxmox.NIC{Slot: slot})
		}
	}
	for _, nic := range nics {
		device := b.want.Network.Interfaces[nic.Slot].Device
		nic = network.WithDevice(nic, device)
		if mac, ok := b.want.MACs[nic.Slot]; ok {
			nic.MAC = mac
		}
		if nic.Model == proxmox.ModelVirtIO && device.Queues == nil {
			nic.Queues = min(b.want.Cores, maxQueues)
		}
		if slices.Contains(b.want.Firewalled, nic.Slot) {
			nic.Firewall = true
		}
		b.set[nic.Slot] = nic.Encode()
	}
	for _, slot := range b.want.Firewalled {
		if _, ok := b.set[slot]; !ok {
			return fmt.Errorf("a security group names interface %s, but neither the template nor spec.network has one of that name", slot)
		}
	}
	return nil
}

// setAddresses writes the VM's addresses into its configuration, where other clients
// see them: Proxmox stores ipconfigN without a cloud-init drive as well. Options that
// the Template has already, and interfaces that use DHCP by default, are not written;
// but a cloud-init drive that Proxmox fills configures no interface without ipconfigN.
func (b *builder) setAddresses() {
	for slot, assigned := range b.want.Network.Interfaces {
		option, value := proxmox.IPConfigSlot(slot), assigned.IPConfig().Encode()
		_, inherited := b.clone.Options[option]
		special := assigned.Address4.IsValid() || assigned.Address6.IsValid() || assigned.SLAAC || assigned.DHCP6
		if value == "" && inherited {
			b.remove = append(b.remove, option) // the class leaves the interface unconfigured
		}
		if value != "" && value != b.clone.Options[option] && (inherited || special || b.want.CloudInit != nil) {
			b.set[option] = value
		}
	}
	for option, list := range map[string][]string{"nameserver": b.want.Network.DNS, "searchdomain": b.want.Network.Search} {
		if value := strings.Join(list, " "); value != "" && value != b.clone.Options[option] {
			b.set[option] = value
		}
	}
}

// FirewallRules returns one rule per security group and interface.
func FirewallRules(groups []v1alpha1.SecurityGroup) []proxmox.SecurityGroupRule {
	rules := make([]proxmox.SecurityGroupRule, 0, len(groups))
	for _, group := range groups {
		if rule := (proxmox.SecurityGroupRule{Group: group.Name, Interface: group.Interface}); !slices.Contains(rules, rule) {
			rules = append(rules, rule)
		}
	}
	return rules
}

// FirewalledInterfaces returns the interfaces that a class puts behind the firewall.
func FirewalledInterfaces(class *v1alpha1.ProxmoxNodeClass) []string {
	var out []string
	for _, group := range class.Spec.SecurityGroups {
		out = append(out, group.Interface)
	}
	return out
}
