// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/log"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Values of the setting node-policy.
const (
	nodePolicySimple = "simple"
	nodePolicyStatic = "static"
)

// connectRoots makes a client for each Cluster whose config has a login of root, for
// the options that no token may set.
func connectRoots(ctx context.Context, settings Settings) (map[string]proxmox.Root, error) {
	roots := map[string]proxmox.Root{}
	for _, cluster := range settings.Cloud.Clusters {
		if !cluster.HasRoot() {
			continue
		}
		root, err := proxmox.NewRoot(cluster, proxmox.Options{
			DialTimeout: settings.Options.DialTimeout, ResponseTimeout: settings.Options.ResponseTimeout,
			Registerer: crmetrics.Registry, Log: log.FromContext(ctx).WithName("proxmox"),
		})
		if err != nil {
			return nil, err
		}
		roots[cluster.Region] = root
	}
	return roots, nil
}

// cpuLayouts says how VMs lie on Hosts where their NodeClass does not.
func cpuLayouts(policy string, roots map[string]proxmox.Root) instancetype.CPULayouts {
	layouts := instancetype.CPULayouts{Roots: slices.Sorted(maps.Keys(roots))}
	if policy == nodePolicyStatic {
		layouts.Default = v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind, Pinning: v1alpha1.PinningExclusive}
	}
	return layouts
}
