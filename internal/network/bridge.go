// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// BridgeProblem is why an interface cannot use its bridge on a Host.
type BridgeProblem struct {
	// Message also contains what to do about it.
	Message string
	// IsRegional is set if the problem is the same on all Hosts of the Cluster.
	IsRegional bool
}

// CheckBridge checks whether a Host has the bridge of an interface, and whether the bridge
// supports the interface's VLAN: it must be VLAN-aware, or have a port, where Proxmox
// creates the VLAN interface. Proxmox accepts any name, and the VM then fails to start.
// subject names the interface in the message, alternative what to do instead of creating
// the bridge. CheckBridge returns nil if there is no problem, or if the bridges of the Host
// were not read yet.
func CheckBridge(facts *observed.Facts, host, subject, alternative string, nic proxmox.NIC) *BridgeProblem {
	bridges := facts.Bridges[host]
	if nic.Bridge == "" || bridges == nil {
		return nil
	}
	bridge, ok := bridges[nic.Bridge]
	if !ok {
		have := strings.Join(slices.Sorted(maps.Keys(bridges)), ", ")
		if have == "" {
			have = "none"
		}
		return &BridgeProblem{Message: fmt.Sprintf("bridge %q of %s is not on this host, which has %s; create it (Host, System, Network), or %s",
			nic.Bridge, subject, have, alternative)}
	}
	return checkVLANs(facts, host, subject, bridge, nic)
}

// checkVLANs checks whether a bridge supports the VLAN of an interface, and its trunks, for
// which it must be VLAN-aware in any case.
func checkVLANs(facts *observed.Facts, host, subject string, bridge proxmox.Bridge, nic proxmox.NIC) *BridgeProblem {
	vlans := fmt.Sprintf("VLAN %d", nic.VLAN)
	if nic.Trunks != "" {
		vlans = "the trunks " + nic.Trunks
	}
	switch {
	case (nic.VLAN == 0 && nic.Trunks == "") || bridge.VLANAware:
	case bridge.Type == "vnet":
		if vnet, known := facts.VNets[bridge.Name]; known && !vnet.VLANAware {
			return &BridgeProblem{IsRegional: true, Message: fmt.Sprintf(
				"%s has %s, but vnet %q is not VLAN-aware; run: pvesh set /cluster/sdn/vnets/%s --vlanaware 1 && pvesh set /cluster/sdn",
				subject, vlans, bridge.Name, bridge.Name)}
		}
	case bridge.Type == "bridge" && (bridge.Ports == "" || nic.Trunks != ""):
		found := "is not VLAN-aware"
		if bridge.Ports == "" {
			found = "has no port and is not VLAN-aware"
		}
		return &BridgeProblem{Message: fmt.Sprintf(
			"%s has %s, but bridge %q %s; run: pvesh set /nodes/%s/network/%s --type bridge --bridge_vlan_aware 1 && pvesh set /nodes/%s/network",
			subject, vlans, bridge.Name, found, host, bridge.Name, host)}
	}
	return nil
}
