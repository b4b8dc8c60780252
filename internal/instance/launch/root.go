// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// ensureRootOptions sets the options that only root may set: CPU affinity and
// hugepages, Ignition through fw_cfg, shares by plan9, encryption of the memory. They are separate from the
// configuration, which the token writes, and precede the start: on a running VM they
// would apply only after the next one.
func (a *attempt) ensureRootOptions(ctx context.Context) error {
	options, err := a.rootOptions(ctx)
	if err != nil || len(options.Missing(proxmox.VMConfig{})) == 0 {
		return err
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil {
		return err
	}
	names := strings.Join(options.Missing(cfg), ", ")
	if names == "" {
		return nil
	}
	root, err := a.deps.RootClients.Get(a.intent.Region)
	if err != nil {
		return failf(v1alpha1.EventPermissionMissing, "setting %s of VM %d on host %s, which only root may do: %w", names, a.intent.VMID, a.intent.Host, err)
	}
	if err := a.verifyOwner(cfg); err != nil {
		return err
	}
	if err := root.Set(ctx, a.intent.Host, a.intent.VMID, cfg, options); err != nil {
		return fmt.Errorf("setting %s of VM %d on host %s as root: %w", names, a.intent.VMID, a.intent.Host, err)
	}
	return nil
}

// rootOptions returns the options of the VM that only root may set.
func (a *attempt) rootOptions(ctx context.Context) (o proxmox.RootOptions, err error) {
	if b := a.intent.Binding; b != nil {
		o.Hugepages = b.Hugepages
		if b.Method == placement.PinByRoot {
			o.Affinity = b.CPUSet()
		}
	}
	o.Encryption = vmconfig.RootOptions(a.class.Spec.Hardware.Get())
	if a.intent.Firmware {
		path, err := a.client.VolumePath(ctx, a.intent.Host, a.id.BootDriveVolume(a.intent.ISOStorage))
		if err != nil {
			return o, err
		}
		o.IgnitionFile = &path
	}
	// Proxmox has no option for shares by plan9. They refer to directory mappings as well, since the authors of
	// NodeClasses must not be able to read the whole Host.
	if slices.ContainsFunc(a.class.Spec.Shares, v1alpha1.Share.IsPlan9) {
		o.Shares, err = a.plan9Shares(ctx)
	}
	return o, err
}

// plan9Shares returns the directories on the VM's Host.
func (a *attempt) plan9Shares(ctx context.Context) ([]proxmox.Plan9Share, error) {
	mappings, err := a.client.DirectoryMappings(ctx)
	if err != nil {
		return nil, err
	}
	var out []proxmox.Plan9Share
	for n, s := range a.class.Spec.Shares {
		if !s.IsPlan9() {
			continue
		}
		i := slices.IndexFunc(mappings, func(m proxmox.DirectoryMapping) bool { return m.ID == s.Mapping })
		if i < 0 || mappings[i].Paths[a.intent.Host] == "" {
			return nil, failf(v1alpha1.EventTemplateUnusable, "spec.shares[%d].mapping: directory mapping %q has no directory on host %s", n, s.Mapping, a.intent.Host)
		}
		out = append(out, proxmox.Plan9Share{Tag: s.Mapping, Path: mappings[i].Paths[a.intent.Host]})
	}
	return out, nil
}
