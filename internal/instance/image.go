// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"hash/fnv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// ImageID names the generation of a Template: its VMID and the moment that
// Proxmox noted when it was created. Another Template, or one made anew under
// the same VMID, is another image.
func ImageID(template inventory.Guest) string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(template.Config.Options["meta"]))
	return fmt.Sprintf("%d-%x", template.VMID, sum.Sum64())
}
