// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// SetBridges replaces the bridges of a host, as if its network configuration was changed and applied.
func (s *Simulator) SetBridges(host string, bridges ...Bridge) error {
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	h := s.engine.Host(host)
	if h == nil {
		return fmt.Errorf("host %q does not exist", host)
	}
	h.Bridges = bridgesOf(bridges)
	return nil
}

func bridgesOf(bridges []Bridge) []kernel.Bridge {
	out := make([]kernel.Bridge, 0, len(bridges))
	for _, b := range bridges {
		out = append(out, kernel.Bridge{Name: b.Name, CIDR: b.CIDR, Gateway: b.Gateway, Ports: b.Ports, VLANAware: b.VLANAware})
	}
	return out
}
