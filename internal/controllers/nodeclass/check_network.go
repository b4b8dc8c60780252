// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// checkNetwork checks whether the Host has the bridges of the VMs' interfaces,
// whether they support its VLANs, and whether the interfaces can get their addresses.
// Proxmox accepts any name, and the VM then fails to start.
func checkNetwork(z zone) *problem {
	if text := addressingProblem(z.class, z.config); text != "" {
		p := z.hostProblem("%s", text)
		p.reason = v1alpha1.ReasonNetworkInvalid
		return p
	}
	if z.config == nil {
		return nil
	}
	for _, nic := range network.NICs(z.class, *z.config) {
		subject, alternative := "the template's "+nic.Slot, fmt.Sprintf("run: qm set %d --%s %s", z.template.VMID, nic.Slot, withOtherBridge(nic.NIC))
		if nic.Field != "" {
			subject, alternative = nic.Field, "set another one"
		}
		switch p := network.CheckBridge(z.facts(poll.FactBridges(z.host), poll.FactVNets), z.host, subject, alternative, nic.NIC); {
		case p == nil:
		case p.IsRegional:
			return z.regionProblem("%s", p.Message)
		default:
			return z.hostProblem("%s", p.Message)
		}
	}
	return nil
}

// withOtherBridge returns the NIC with a placeholder for the bridge.
func withOtherBridge(nic proxmox.NIC) string {
	nic.Bridge = "BRIDGE"
	return nic.Encode()
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
