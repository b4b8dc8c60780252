// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
)

// checkCPULayout checks whether the Host can provide the CPU layout of the class,
// regardless of its capacity: its cells are known, and root options can be set if
// needed.
func checkCPULayout(z zone) *problem {
	z.facts(poll.FactTopology(z.host)) // which unsupportedLayout depends on
	if z.unsupportedLayout != "" {
		return z.hostProblem("%s", z.unsupportedLayout)
	}
	return nil
}
