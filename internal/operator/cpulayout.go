// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Values of the setting node-policy.
const (
	nodePolicySimple = "simple"
	nodePolicyStatic = "static"
)

// newRoots returns a root client of each Cluster whose config contains a root login,
// for the options that no API token may set.
func newRoots(ctx context.Context, settings Settings) (map[string]proxmox.Root, error) {
	roots := map[string]proxmox.Root{}
	for _, cluster := range settings.Cloud.Clusters {
		if !cluster.HasRoot() {
			continue
		}
		root, err := proxmox.NewRoot(cluster, clientOptions(ctx, settings))
		if err != nil {
			return nil, err
		}
		roots[cluster.Region] = root
	}
	return roots, nil
}

// cpuLayouts returns the CPU layout of NodeClasses that do not set spec.cpu. Roots are the
// regions with a root login.
func cpuLayouts(policy string, roots []string) instancetype.CPULayouts {
	layouts := instancetype.CPULayouts{Roots: roots}
	if policy == nodePolicyStatic {
		layouts.Default = v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind, Pinning: v1alpha1.PinningExclusive}
	}
	return layouts
}
