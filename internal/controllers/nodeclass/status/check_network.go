// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// checkNetwork checks whether the Host has the bridges of the template's interfaces,
// whether they support its VLANs, and whether the interfaces can get their addresses.
// Proxmox accepts any name, and the VM then fails to start.
func checkNetwork(z zone) *problem {
	if text := addressingProblem(z.class, z.config); text != "" {
		p := z.hostProblem("%s", text)
		p.reason = v1alpha1.ReasonNetworkInvalid
		return p
	}
	bridges := z.facts().Bridges[z.host]
	if z.config == nil || bridges == nil {
		return nil
	}
	for _, nic := range z.config.Network().NICs() {
		if nic.Bridge == "" {
			continue
		}
		bridge, ok := bridges[nic.Bridge]
		if !ok {
			return z.hostProblem("bridge %q of the template's %s is not on this host, which has %s; create it (Host, System, Network), or run: qm set %d --%s %s",
				nic.Bridge, nic.Slot, strings.Join(slices.Sorted(maps.Keys(bridges)), ", "), z.template.VMID, nic.Slot, withOtherBridge(nic))
		}
		if p := checkVLAN(z, nic, bridge); p != nil {
			return p
		}
	}
	return nil
}

// withOtherBridge returns the NIC with a placeholder for the bridge.
func withOtherBridge(nic proxmox.NIC) string {
	nic.Bridge = "BRIDGE"
	return nic.Encode()
}

// checkVLAN checks whether a bridge supports the VLAN of a NIC: it must be VLAN-aware,
// or have a port, where Proxmox creates the VLAN interface.
func checkVLAN(z zone, nic proxmox.NIC, bridge proxmox.Bridge) *problem {
	switch {
	case nic.VLAN == 0 || bridge.VLANAware:
	case bridge.Type == "vnet":
		if vnet, known := z.facts().VNets[bridge.Name]; known && !vnet.VLANAware {
			return z.regionProblem("the template's %s has VLAN %d, but vnet %q is not VLAN-aware; run: pvesh set /cluster/sdn/vnets/%s --vlanaware 1 && pvesh set /cluster/sdn",
				nic.Slot, nic.VLAN, bridge.Name, bridge.Name)
		}
	case bridge.Type == "bridge" && bridge.Ports == "":
		return z.hostProblem("the template's %s has VLAN %d, but bridge %q has no port and is not VLAN-aware; run: pvesh set /nodes/%s/network/%s --type bridge --bridge_vlan_aware 1 && pvesh set /nodes/%s/network",
			nic.Slot, nic.VLAN, bridge.Name, z.host, bridge.Name, z.host)
	}
	return nil
}

func bridgeFacts(z zone) []inventory.Fact {
	return []inventory.Fact{inventory.FactBridges(z.host), inventory.FactVNets}
}

// addressingProblem returns why the interfaces of a template cannot get the addresses
// that it and the class configure; empty if they can, or if the template was not read
// yet.
func addressingProblem(class *v1alpha1.ProxmoxNodeClass, template *proxmox.VMConfig) string {
	if template == nil {
		return ""
	}
	if _, err := network.NewLayout(class, *template); err != nil {
		return err.Error()
	}
	return ""
}
