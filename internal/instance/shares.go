// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// maxShares is the number of virtiofs slots.
const maxShares = 10

// share puts the shares into slots that the Template leaves free. Proxmox gives
// the guest the mapping's name as the tag to mount.
func share(cfg proxmox.VMConfig, shares []v1alpha1.Share, set map[string]string) error {
	slot := 0
	for _, s := range shares {
		if s.Plan9() {
			continue // see ensurePlan9
		}
		for ; slot < maxShares; slot++ {
			if _, taken := cfg.Options[fmt.Sprintf("virtiofs%d", slot)]; !taken {
				break
			}
		}
		if slot == maxShares {
			return fmt.Errorf("share %s has no virtiofs slot left: there are %d, and the template uses some", s.Mapping, maxShares)
		}
		value := "dirid=" + s.Mapping
		if s.Cache != "" {
			value += ",cache=" + s.Cache
		}
		set[fmt.Sprintf("virtiofs%d", slot)] = value
		slot++
	}
	return nil
}

// guestShares are the shares as the boot data templates see them.
func guestShares(shares []v1alpha1.Share) []bootdata.Share {
	var out []bootdata.Share
	for _, s := range shares {
		seen := bootdata.Share{Tag: s.Mapping, MountPath: s.MountPath, Type: "virtiofs", Options: "defaults"}
		if s.Plan9() {
			seen.Type, seen.Options = "9p", "trans=virtio,version=9p2000.L"
		}
		out = append(out, seen)
	}
	return out
}

// hooked says whether the clone brings along what runs the scripts: a token may
// not set a hookscript.
func hooked(cfg proxmox.VMConfig, hooks []string) error {
	if len(hooks) == 0 || cfg.Options["hookscript"] != "" {
		return nil
	}
	return fmt.Errorf("spec.hookScripts names %s, but the template has no hookscript to run them: as root, qm set TEMPLATE --hookscript local:snippets/pve-hook",
		strings.Join(hooks, ", "))
}
