// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// network looks whether the Host has the bridges of the Template's interfaces, whether
// they can carry its VLANs, and whether the interfaces can get their addresses. Proxmox
// takes anything, and the VM then fails to start.
func network(z zone) *finding {
	if text := misaddressed(z.class, z.config); text != "" {
		f := z.onHost("%s", text)
		f.reason = v1alpha1.ReasonNetworkInvalid
		return f
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
			return z.onHost("bridge %q of the template's %s is not on this host, which has %s; make it (Host, System, Network), or run: qm set %d --%s %s",
				nic.Bridge, nic.Slot, strings.Join(slices.Sorted(maps.Keys(bridges)), ", "), z.template.VMID, nic.Slot, moved(nic))
		}
		if f := vlan(z, nic, bridge); f != nil {
			return f
		}
	}
	return nil
}

// moved is the NIC as it would be on another bridge.
func moved(nic proxmox.NIC) string {
	nic.Bridge = "BRIDGE"
	return nic.Encode()
}

// vlan looks whether a bridge can carry the tag of a NIC: a VLAN-aware one can, and
// one with a port, where Proxmox makes the VLAN.
func vlan(z zone, nic proxmox.NIC, bridge proxmox.Bridge) *finding {
	switch {
	case nic.VLAN == 0 || bridge.VLANAware:
	case bridge.Type == "vnet":
		if vnet, known := z.facts().VNets[bridge.Name]; known && !vnet.VLANAware {
			return z.inRegion("the template's %s has VLAN %d, but vnet %q takes no VLANs of VMs; run: pvesh set /cluster/sdn/vnets/%s --vlanaware 1 && pvesh set /cluster/sdn",
				nic.Slot, nic.VLAN, bridge.Name, bridge.Name)
		}
	case bridge.Type == "bridge" && bridge.Ports == "":
		return z.onHost("the template's %s has VLAN %d, but bridge %q has no port and is not VLAN-aware; run: pvesh set /nodes/%s/network/%s --type bridge --bridge_vlan_aware 1 && pvesh set /nodes/%s/network",
			nic.Slot, nic.VLAN, bridge.Name, z.host, bridge.Name, z.host)
	}
	return nil
}

func bridgeFacts(z zone) []inventory.Fact {
	return []inventory.Fact{inventory.FactBridges(z.host), inventory.FactVNets}
}
