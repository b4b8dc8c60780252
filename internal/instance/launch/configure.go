// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// ensureConfigured turns the clone into the desired VM: configuration, firewall, disk.
func (a *attempt) ensureConfigured(ctx context.Context, cfg proxmox.VMConfig) error {
	// Firewall rules are a separate file without the VM's lock, so they are written in
	// parallel. An error does not cancel the other: a rule in flight would still be added,
	// and the next attempt would add it twice.
	var group errgroup.Group
	existing := cfg
	group.Go(func() error { return a.ensureFirewall(ctx, existing) })
	group.Go(func() (err error) {
		if !vmconfig.IsConfigured(cfg, a.intent.VMID) {
			if cfg, err = a.configure(ctx); err != nil {
				return err
			}
		}
		if err = a.ensureRootOptions(ctx); err != nil {
			return err
		}
		if err = a.growRetainedDisks(ctx); err != nil {
			return err
		}
		return a.growBootDisk(ctx, cfg)
	})
	if err := group.Wait(); err != nil {
		return err
	}
	a.reach(instance.PhaseConfigured)
	return nil
}

// configure writes the configuration, and returns that of the clone as it was before.
func (a *attempt) configure(ctx context.Context) (proxmox.VMConfig, error) {
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil {
		return cfg, err
	}
	if err := a.verifyOwner(cfg); err != nil {
		return cfg, err
	}
	tags, err := instance.RenderTags(a.claim, a.class, a.intent)
	if err != nil {
		return cfg, failf(v1alpha1.EventBootDataFailed, "rendering the tags of VM %d: %w", a.intent.VMID, err)
	}
	want := vmconfig.Desired{
		Name: instance.NodeName(a.claim, a.intent), VMID: a.intent.VMID, UUID: a.id.ClaimUID, InstanceType: a.intent.InstanceType,
		Cores: a.intent.Cores, MemoryMiB: a.intent.MemoryMiB,
		Tags: tags, MACs: a.intent.MACs,
		Firewalled: vmconfig.FirewalledInterfaces(a.class), Devices: a.intent.Devices, Network: a.intent.Network,
		Shares: a.class.Spec.Shares, HookScripts: a.class.Spec.HookScripts,
		BootDisk: a.class.Spec.BootDevice.DiskOptions, Disks: a.intent.Disks, Volumes: a.intent.Retained,
		Hardware: a.class.Spec.Hardware.Get(),
	}
	if a.intent.Binding != nil {
		want.Cells = a.intent.Binding.Cells
	}
	if a.intent.ISOStorage != "" {
		if !a.intent.Firmware {
			want.ISO = a.id.BootDriveVolume(a.intent.ISOStorage)
		}
	} else if want.CloudInit, err = a.boot.CloudInit(ctx, a.class); err != nil {
		// Never both: the class may have changed since the launch was planned.
		return cfg, err
	} else if want.CloudInit != nil {
		if err := a.recordBootData(ctx, boot.HashCloudInit(want.CloudInit)); err != nil {
			return cfg, err
		}
	}
	change, err := vmconfig.Change(cfg, want)
	if err != nil {
		return cfg, failf(v1alpha1.EventTemplateUnusable, "configuring the clone of template %d on host %s: %w", a.intent.TemplateID, a.intent.TemplateHost, err)
	}
	if err := a.checkRetainedDisks(ctx); err != nil {
		return cfg, err
	}
	// The VM may have been planned again since the clone, but not cloned again.
	mark := instance.NewMark(a.id, a.intent, a.class.Spec.HookScripts)
	if cloned, _ := ownership.Read(cfg.Description()); cloned.Source != nil {
		mark.Source = cloned.Source
	}
	mark.Applied = new(instance.NewApplied(a.class, a.intent))
	change.Set["description"] = mark.Notes(cfg.Description())
	defer a.deps.Inventory.InvalidateConfig(a.intent.Region, a.intent.VMID)
	return cfg, a.client.UpdateVM(ctx, a.intent.Host, a.intent.VMID, change)
}

// growBootDisk resizes the boot disk. It is separate from the configuration, since a controller may stop
// between the two. The start would wait for it too, but only for ten seconds.
func (a *attempt) growBootDisk(ctx context.Context, cfg proxmox.VMConfig) error {
	disk, ok := cfg.Drives().Boot()
	if !ok || disk.SizeBytes >= a.intent.DiskBytes {
		return nil
	}
	return a.growDisk(ctx, disk.Slot, a.intent.DiskBytes)
}

func (a *attempt) growDisk(ctx context.Context, slot string, bytes int64) error {
	task, err := a.client.ResizeDisk(ctx, a.intent.Host, a.intent.VMID, slot, bytes)
	if err == nil {
		_, err = a.deps.Tasks.Wait(ctx, a.client, task)
	}
	if err != nil {
		return fmt.Errorf("growing disk %s of VM %d on host %s: %w", slot, a.intent.VMID, a.intent.Host, err)
	}
	return nil
}

// ensureFirewall writes the security groups of the class. If the VM was configured with other ones
// before the class changed, it gets those of the class with its first update in place.
func (a *attempt) ensureFirewall(ctx context.Context, cfg proxmox.VMConfig) error {
	groups := a.class.Spec.SecurityGroups
	if mark, _ := ownership.Read(cfg.Description()); len(groups) == 0 || mark.Applied != nil && !instance.HasGroups(*mark.Applied, groups) {
		return nil
	}
	return a.client.SetFirewall(ctx, a.intent.Host, a.intent.VMID, vmconfig.FirewallRules(groups))
}
