// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

const (
	// taskResize is the type of tasks that resize a disk.
	taskResize = "resize"
	// taskStart is the type of tasks that start a VM.
	taskStart = "qmstart"
	// quickResize is far below the ten seconds that Proxmox waits for a VM's lock.
	quickResize = 2 * time.Second
)

// resize is the resize of a disk in progress; the zero value is none.
type resize struct {
	slot string
	task proxmox.UPID
}

// ensureConfigured turns the clone into the desired VM: configuration, firewall, disk.
// If resizes are known to be quick, the resize may still run when it returns.
func (a *attempt) ensureConfigured(ctx context.Context, cfg proxmox.VMConfig) (resizing resize, err error) {
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
		if resizing, err = a.startResize(ctx, cfg); err != nil || a.resizesQuickly() {
			return err
		}
		_, err = a.wait(ctx, resizing.task)
		err, resizing = a.resizeError(resizing, err), resize{}
		return err
	})
	if err := group.Wait(); err != nil {
		return resize{}, err
	}
	a.reach(instance.PhaseConfigured)
	return resizing, nil
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
	// Not that of the clone: the VM may have been planned again since.
	mark := instance.NewMark(a.id, a.intent, a.class.Spec.HookScripts)
	mark.Applied = new(instance.NewApplied(a.class, a.intent))
	change.Set["description"] = mark.Notes(cfg.Description())
	return cfg, a.client.UpdateVM(ctx, a.intent.Host, a.intent.VMID, change)
}

// startResize starts to resize the boot disk. It is separate from the configuration,
// since a controller may stop between the two.
func (a *attempt) startResize(ctx context.Context, cfg proxmox.VMConfig) (resize, error) {
	disk, ok := cfg.Drives().Boot()
	if !ok || disk.SizeBytes >= a.intent.DiskBytes {
		return resize{}, nil
	}
	task, err := a.client.ResizeDisk(ctx, a.intent.Host, a.intent.VMID, disk.Slot, a.intent.DiskBytes)
	return resize{slot: disk.Slot, task: task}, err
}

// resizesQuickly reports whether resizes on the storage are known to be so quick that
// the start can wait for the VM's lock.
func (a *attempt) resizesQuickly() bool {
	took := a.deps.Tasks.Durations.Learned(taskResize, a.durationKey())
	return took > 0 && took < quickResize
}

// waitResized waits for a resize while the VM starts.
func (a *attempt) waitResized(ctx context.Context, r resize) error {
	_, err := a.deps.Tasks.WaitBeside(ctx, a.client, r.task, a.durationKey(), taskStart, a.durationKey())
	return a.resizeError(r, err)
}

func (a *attempt) resizeError(r resize, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("growing disk %s of VM %d on host %s: %w", r.slot, a.intent.VMID, a.intent.Host, err)
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
