// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ensurePlan9 adds the shares to the VM's arguments that Proxmox has no option for,
// which only root may. What is shared is a directory mapping all the same: who may
// write NodeClasses must not read the whole Host.
func (l *launch) ensurePlan9(ctx context.Context) error {
	if !slices.ContainsFunc(l.class.Spec.Shares, v1alpha1.Share.Plan9) {
		return nil
	}
	root, err := l.root(l.intent.Region)
	if err != nil {
		return &LaunchError{Reason: ReasonPermission, err: fmt.Errorf("sharing directories with VM %d on host %s by plan9, %w", l.intent.VMID, l.intent.Host, err)}
	}
	shares, err := l.plan9Shares(ctx)
	if err != nil {
		return err
	}
	cfg, err := l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	if err != nil {
		return err
	}
	if err := l.refuse(cfg); err != nil {
		return err
	}
	if err := root.Share(ctx, l.intent.Host, l.intent.VMID, cfg, shares); err != nil {
		return fmt.Errorf("sharing directories with VM %d on host %s as root, %w", l.intent.VMID, l.intent.Host, err)
	}
	return nil
}

// plan9Shares finds the directories on the VM's Host.
func (l *launch) plan9Shares(ctx context.Context) ([]proxmox.Plan9Share, error) {
	mappings, err := l.client.DirectoryMappings(ctx)
	if err != nil {
		return nil, err
	}
	var out []proxmox.Plan9Share
	for n, s := range l.class.Spec.Shares {
		if !s.Plan9() {
			continue
		}
		i := slices.IndexFunc(mappings, func(m proxmox.DirectoryMapping) bool { return m.ID == s.Mapping })
		if i < 0 || mappings[i].Paths[l.intent.Host] == "" {
			return nil, &LaunchError{Reason: ReasonTemplate, err: fmt.Errorf(
				"spec.shares[%d].mapping: directory mapping %q has no directory on host %s", n, s.Mapping, l.intent.Host)}
		}
		out = append(out, proxmox.Plan9Share{Tag: s.Mapping, Path: mappings[i].Paths[l.intent.Host]})
	}
	return out, nil
}
