// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// shares looks whether the directories that VMs of the class share with their Host are
// mapped there. Proxmox takes any name, and the VM then fails to start.
func shares(z zone) *finding {
	wanted := sharesOf(z)
	if len(wanted) == 0 {
		return nil
	}
	if !z.snapshot.Version.AtLeast(8, 4) {
		return z.inRegion("%s needs Proxmox VE 8.4 or newer, this is %s", wanted[0].field, z.snapshot.Version.Release)
	}
	known := z.facts().Directories
	if known == nil {
		f := z.inRegion("the directory mappings were not looked up yet")
		f.unknown = true
		return f
	}
	for _, s := range wanted {
		mapping, exists := known[s.mapping]
		if !exists {
			return z.inRegion("%s: directory mapping %q does not exist; run: pvesh create /cluster/mapping/dir --id %s --map node=HOST,path=DIRECTORY, with a --map for each host",
				s.field, s.mapping, s.mapping)
		}
		path := mapping.Paths[z.host]
		if path == "" {
			return z.onHost("%s: directory mapping %q has no directory on this host; add one (Datacenter, Resource Mappings)", s.field, s.mapping)
		}
		if err := (proxmox.Plan9Share{Tag: s.mapping, Path: path}).Check(); s.plan9 && err != nil {
			return z.onHost("%s: %s", s.field, err)
		}
	}
	return nil
}

// share is a directory mapping that VMs need, and who says so.
type share struct {
	mapping, field string
	plan9          bool
}

// sharesOf are those of the class, and those that clones inherit.
func sharesOf(z zone) []share {
	var out []share
	for n, s := range z.class.Spec.Shares {
		out = append(out, share{s.Mapping, fmt.Sprintf("spec.shares[%d].mapping", n), s.Plan9()})
	}
	if z.config != nil {
		for _, mapping := range z.config.HostDevices().Directories() {
			out = append(out, share{mapping, fmt.Sprintf("virtiofs of template %d", z.template.VMID), false})
		}
	}
	return out
}

func shareFacts(z zone) []inventory.Fact {
	if len(sharesOf(z)) == 0 {
		return nil
	}
	return []inventory.Fact{inventory.FactDirectories}
}
