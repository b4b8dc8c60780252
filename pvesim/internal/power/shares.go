// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// checkSharedDirectories returns an error if a virtiofs directory is not mapped on the host. Proxmox does not check
// this when the option is set.
func (dv *devices) checkSharedDirectories(g *kernel.Guest) error {
	for _, key := range slices.Sorted(maps.Keys(g.Config.Options)) {
		if qm.Stem(key) != "virtiofs" {
			continue
		}
		id := qm.SharedDirectory(g.Config.Options[key])
		if !dv.mappings.Has("dir", id) {
			return api.Failf("directory mapping invalid: '%s' does not exist", id)
		}
		if len(dv.mappings.Paths("dir", id, g.Host)) == 0 {
			return api.Failf("directory mapping invalid: '%s' has no path on node '%s'", id, g.Host)
		}
	}
	return nil
}
