// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
)

// checkResourcePool checks whether the resource pool exists.
func checkResourcePool(z zone) *problem {
	name := z.class.Spec.ResourcePool
	if name == "" {
		return nil
	}
	switch exists, known := z.facts(poll.FactPool(name)).Pools[name]; {
	case !known:
		p := z.regionProblem("spec.resourcePool %q has not been read yet", name)
		p.unknown = true
		return p
	case !exists:
		return z.regionProblem("spec.resourcePool %q does not exist; run: pveum pool add %s", name, name)
	}
	return nil
}
