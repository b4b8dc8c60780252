// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

// addressPoolCheck finds zones without a free address. Counting addresses is expensive
// and most Hosts of a region have equal templates, so results are cached by network
// configuration.
type addressPoolCheck struct {
	view  inventory.View
	class *v1alpha1.ProxmoxNodeClass
	known map[string]string
}

// exhaustedReason returns why a VM in the zone cannot get an address, or is no machine of the
// class; empty if it can.
func (p addressPoolCheck) exhaustedReason(z zone) string {
	if machines := p.class.Spec.Machines; len(machines) > 0 && !slices.ContainsFunc(machines, func(m v1alpha1.Machine) bool { return m.AllowsHost(z.Region, z.Host) }) {
		return "no machine of the NodeClass is on this host"
	}
	guest, ok := p.view.Guest(z.Region, z.template)
	if !ok || guest.Config == nil {
		return ""
	}
	var key strings.Builder
	key.WriteString(z.Region + ";")
	for _, nic := range guest.Config.Network().NICs() {
		config := guest.Config.Network().IPConfig(nic.Slot)
		key.WriteString(nic.Slot + config.Encode() + ";")
	}
	if reason, ok := p.known[key.String()]; ok {
		return reason
	}
	reason := ""
	layout, err := network.NewLayout(p.class, *guest.Config)
	if err != nil {
		reason = err.Error()
	} else if len(layout.Pools()) > 0 && !p.view.Snapshots[z.Region].AddressesKnown {
		// After a restart. Creating a NodeClaim would fail, and core would retry.
		reason = fmt.Sprintf("the addresses of the guests in region %s are still being read", z.Region)
	} else if exhausted := layout.Exhausted(p.view); exhausted != nil {
		reason = exhausted.Error()
	}
	p.known[key.String()] = reason
	return reason
}
