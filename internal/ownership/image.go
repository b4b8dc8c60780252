// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"fmt"
	"hash/fnv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ImageID identifies the image of a Template's clones; a difference is drift. For a
// Template built from a ProxmoxTemplate it is the generation, which does not change when
// the Template is rebuilt from the same image. For other Templates it consists of the
// VMID and Proxmox's creation time, so a Template recreated with the same VMID is
// another image.
func ImageID(vmid int, cfg proxmox.VMConfig) string {
	if generation, ok := generationOf(vmid, cfg); ok {
		return generation
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(cfg.Options["meta"]))
	return fmt.Sprintf("%d-%x", vmid, sum.Sum64())
}

// ImageLabel returns the value of the label instance-image-id of a Template's clones:
// the generation if the Template was built from a ProxmoxTemplate, or else its VMID.
func ImageLabel(vmid int, cfg proxmox.VMConfig) string {
	if generation, ok := generationOf(vmid, cfg); ok {
		return generation
	}
	return fmt.Sprint(vmid)
}

func generationOf(vmid int, cfg proxmox.VMConfig) (string, bool) {
	mark, ok := Read(cfg.Description())
	return mark.Generation, ok && mark.VMID == vmid && mark.Generation != ""
}
