// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"slices"

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
	if err := a.ensureAffinity(ctx); err != nil {
		return err
	}
	if err := a.ensureIgnitionFile(ctx); err != nil {
		return err
	}
	if err := a.ensurePlan9(ctx); err != nil {
		return err
	}
	return a.ensureEncryption(ctx)
}

func (a *attempt) ensureAffinity(ctx context.Context) error {
	b := a.intent.Binding
	if b == nil || (b.Method != placement.PinByRoot && b.Hugepages == "") {
		return nil
	}
	options := proxmox.RootOptions{Hugepages: b.Hugepages}
	if b.Method == placement.PinByRoot {
		options.Affinity = b.CPUSet()
	}
	root, ok := a.deps.RootClients[a.intent.Region]
	if !ok {
		return failf(v1alpha1.EventPermissionMissing, "binding VM %d on host %s to CPUs %s: region %s has no root login in the cloud config any more",
			a.intent.VMID, a.intent.Host, b.CPUs, a.intent.Region)
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil {
		return err
	}
	if cfg.Compute().Affinity().Equals(options.Affinity) && cfg.Compute().Hugepages() == options.Hugepages {
		return nil
	}
	if err := a.verifyOwner(cfg); err != nil {
		return err
	}
	options.Digest = cfg.Digest
	if err := root.Bind(ctx, a.intent.Host, a.intent.VMID, options); err != nil {
		return fmt.Errorf("binding VM %d on host %s as root: %w", a.intent.VMID, a.intent.Host, err)
	}
	return nil
}

// ensureIgnitionFile sets the path of the uploaded Ignition in the VM's arguments.
func (a *attempt) ensureIgnitionFile(ctx context.Context) error {
	if !a.intent.Firmware {
		return nil
	}
	root, err := a.deps.RootClients.Get(a.intent.Region)
	if err != nil {
		return failf(v1alpha1.EventPermissionMissing, "setting the Ignition file of VM %d on host %s: %w", a.intent.VMID, a.intent.Host, err)
	}
	path, err := a.client.VolumePath(ctx, a.intent.Host, a.id.BootDriveVolume(a.intent.ISOStorage))
	if err != nil {
		return err
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil || proxmox.HasIgnitionFile(cfg, path) {
		return err
	}
	if err := a.verifyOwner(cfg); err != nil {
		return err
	}
	if err := root.SetIgnitionFile(ctx, a.intent.Host, a.intent.VMID, cfg, path); err != nil {
		return fmt.Errorf("setting the Ignition file of VM %d on host %s as root: %w", a.intent.VMID, a.intent.Host, err)
	}
	return nil
}

// ensurePlan9 adds shares by plan9 to the VM's arguments: Proxmox has no option for
// them. They refer to directory mappings as well, since the authors of NodeClasses must
// not be able to read the whole Host.
func (a *attempt) ensurePlan9(ctx context.Context) error {
	if !slices.ContainsFunc(a.class.Spec.Shares, v1alpha1.Share.IsPlan9) {
		return nil
	}
	root, err := a.deps.RootClients.Get(a.intent.Region)
	if err != nil {
		return failf(v1alpha1.EventPermissionMissing, "sharing directories with VM %d on host %s by plan9: %w", a.intent.VMID, a.intent.Host, err)
	}
	shares, err := a.plan9Shares(ctx)
	if err != nil {
		return err
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil {
		return err
	}
	if err := a.verifyOwner(cfg); err != nil {
		return err
	}
	if err := root.Share(ctx, a.intent.Host, a.intent.VMID, cfg, shares); err != nil {
		return fmt.Errorf("sharing directories with VM %d on host %s as root: %w", a.intent.VMID, a.intent.Host, err)
	}
	return nil
}

// ensureEncryption sets the options of confidential computing, unless the Template has them.
func (a *attempt) ensureEncryption(ctx context.Context) error {
	options := vmconfig.RootOptions(a.class.Spec.Hardware.Get())
	if len(options) == 0 {
		return nil
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil || vmconfig.HasOptions(cfg, options) {
		return err
	}
	root, err := a.deps.RootClients.Get(a.intent.Region)
	if err != nil {
		return failf(v1alpha1.EventPermissionMissing, "encrypting the memory of VM %d on host %s: %w", a.intent.VMID, a.intent.Host, err)
	}
	if err := a.verifyOwner(cfg); err != nil {
		return err
	}
	if err := root.SetEncryption(ctx, a.intent.Host, a.intent.VMID, cfg, options); err != nil {
		return fmt.Errorf("encrypting the memory of VM %d on host %s as root: %w", a.intent.VMID, a.intent.Host, err)
	}
	return nil
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
