// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"fmt"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// maxShares is the number of virtiofs slots.
const maxShares = 10

// addShares puts the virtiofs shares into slots that the Template leaves free. The
// guest mounts a share by the name of its mapping. Shares by plan9 need root, see the
// launch package.
func (b *builder) addShares() error {
	slot := 0
	for _, s := range b.want.Shares {
		if s.IsPlan9() {
			continue
		}
		for ; slot < maxShares; slot++ {
			if _, taken := b.clone.Options[fmt.Sprintf("virtiofs%d", slot)]; !taken {
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
		b.set[fmt.Sprintf("virtiofs%d", slot)] = value
		slot++
	}
	return nil
}

// checkHookScripts returns an error if the Template has no hookscript that runs the
// scripts: an API token may not set one.
func checkHookScripts(cfg proxmox.VMConfig, scripts []string) error {
	if len(scripts) == 0 || cfg.Options["hookscript"] != "" {
		return nil
	}
	return fmt.Errorf("spec.hookScripts names %s, but the template has no hookscript to run them: as root, qm set TEMPLATE --hookscript local:snippets/pve-hook",
		strings.Join(scripts, ", "))
}
