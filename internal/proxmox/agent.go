// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/json"
	"net/netip"
)

// agentInterfaces is what a guest agent tells of the guest's network.
type agentInterfaces []struct {
	Addresses []struct {
		Address string `json:"ip-address"`
	} `json:"ip-addresses"`
}

// UnmarshalJSON takes an agent's error, which is an object instead of a list, for
// nothing known.
func (a *agentInterfaces) UnmarshalJSON(data []byte) error {
	type plain agentInterfaces
	if len(data) > 0 && data[0] != '[' {
		*a = nil
		return nil
	}
	return json.Unmarshal(data, (*plain)(a))
}

func (a agentInterfaces) addresses() []netip.Addr {
	var out []netip.Addr
	for _, card := range a {
		for _, entry := range card.Addresses {
			addr, err := netip.ParseAddr(entry.Address)
			if err != nil || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
				continue
			}
			out = append(out, addr.Unmap().WithZone(""))
		}
	}
	return out
}
