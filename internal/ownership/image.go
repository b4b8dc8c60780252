// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ownership

import (
	"fmt"
	"hash/fnv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ImageID names what a Template's clones are: a difference is drift. Of a Template
// that was made from a ProxmoxTemplate it is the generation, so that one made anew
// from the same image is the same. Of others it is the VMID and the moment that
// Proxmox noted when they were created: another Template, or one made anew under the
// same VMID, is another image.
func ImageID(vmid int, cfg proxmox.VMConfig) string {
	if generation, ok := generationOf(vmid, cfg); ok {
		return generation
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(cfg.Options["meta"]))
	return fmt.Sprintf("%d-%x", vmid, sum.Sum64())
}

// ImageLabel is the value of the label instance-image-id of a Template's clones: its
// VMID, or its generation where it was made from a ProxmoxTemplate.
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
