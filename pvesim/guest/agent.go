// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// agent returns what qemu-guest-agent, which cloud images contain, reports about the guest.
func (g *guest) agent(s system) *pvesim.Agent {
	out := &pvesim.Agent{
		Hostname: s.hostname,
		OS:       map[string]string{"id": "ubuntu", "pretty-name": s.image, "version-id": "24.04"},
		Interfaces: []pvesim.AgentInterface{
			{Name: "lo", MAC: "00:00:00:00:00:00", Addresses: []string{"127.0.0.1/8"}},
		},
	}
	for i, mac := range g.macs {
		card := pvesim.AgentInterface{Name: fmt.Sprintf("eth%d", i), MAC: mac}
		for _, a := range s.addresses {
			if a.card == i {
				card.Addresses = append(card.Addresses, a.String())
			}
		}
		out.Interfaces = append(out.Interfaces, card)
	}
	return out
}
