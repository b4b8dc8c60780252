// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// checkShares checks whether the directories that VMs share with their Host are mapped
// there. Proxmox accepts any name, and the VM then fails to start.
func checkShares(z zone) *problem {
	required := requiredShares(z)
	if len(required) == 0 {
		return nil
	}
	if !z.snapshot.Version.AtLeast(8, 4) {
		return z.regionProblem("%s needs Proxmox VE 8.4 or newer, this is %s", required[0].field, z.snapshot.Version.Release)
	}
	known := z.facts(poll.FactDirectories).Directories
	if known == nil {
		p := z.regionProblem("the directory mappings have not been read yet")
		p.unknown = true
		return p
	}
	for _, s := range required {
		mapping, exists := known[s.mapping]
		if !exists {
			return z.regionProblem("%s: directory mapping %q does not exist; run: pvesh create /cluster/mapping/dir --id %s --map node=HOST,path=DIRECTORY, with a --map for each host",
				s.field, s.mapping, s.mapping)
		}
		path := mapping.Paths[z.host]
		if path == "" {
			return z.hostProblem("%s: directory mapping %q has no directory on this host; add one (Datacenter, Resource Mappings)", s.field, s.mapping)
		}
		if err := (proxmox.Plan9Share{Tag: s.mapping, Path: path}).Check(); s.plan9 && err != nil {
			return z.hostProblem("%s: %s", s.field, err)
		}
	}
	return nil
}

// share is a directory mapping that VMs need, and the field that configures it.
type share struct {
	mapping, field string
	plan9          bool
}

// requiredShares returns the shares of the class and those that clones inherit.
func requiredShares(z zone) []share {
	var out []share
	for n, s := range z.class.Spec.Shares {
		out = append(out, share{s.Mapping, fmt.Sprintf("spec.shares[%d].mapping", n), s.IsPlan9()})
	}
	if z.config != nil {
		for _, mapping := range z.config.HostDevices().Directories() {
			out = append(out, share{mapping, fmt.Sprintf("virtiofs of template %d", z.template.VMID), false})
		}
	}
	return out
}
