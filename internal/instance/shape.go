// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// kindResize is the type of tasks that grow a disk.
	kindResize = "resize"
	// quickGrowth is far less than what Proxmox waits for a VM's lock: ten seconds.
	quickGrowth = 2 * time.Second
)

// growth is a disk that is being grown; the zero value is none.
type growth struct {
	slot string
	task proxmox.UPID
}

// ensureShaped brings a clone to what was asked for: configuration, firewall, disk.
// Where disks are known to grow quickly, that may still be under way when it returns.
func (l *launch) ensureShaped(ctx context.Context, cfg proxmox.VMConfig) (growing growth, err error) {
	// The firewall's rules are a file of their own: the VM's lock, which the rest
	// takes in turn, is not in their way. Neither ends the other when it fails: a rule
	// that was asked for comes all the same, and the next try would add it once more.
	var group errgroup.Group
	group.Go(func() error { return l.ensureFirewall(ctx) })
	group.Go(func() (err error) {
		if !Configured(cfg) {
			if cfg, err = l.ensureConfigured(ctx); err != nil {
				return err
			}
		}
		if err = l.ensureBound(ctx); err != nil {
			return err
		}
		if err = l.ensureFirmware(ctx); err != nil {
			return err
		}
		if err = l.ensurePlan9(ctx); err != nil {
			return err
		}
		if growing, err = l.grow(ctx, cfg); err != nil || l.growsQuickly() {
			return err
		}
		err = l.awaitGrown(ctx, growing)
		growing = growth{}
		return err
	})
	if err := group.Wait(); err != nil {
		return growth{}, err
	}
	l.reach(PhaseConfigured)
	return growing, nil
}

// growsQuickly tells whether disks are known to grow so quickly there that whoever
// needs the VM's lock next may just wait for it.
func (l *launch) growsQuickly() bool {
	took := l.durations.Learned(kindResize, durationKey(l.intent.Region, l.intent.Host, l.intent.Storage))
	return took > 0 && took < quickGrowth
}

// ensureConfigured makes the one write, and answers with the clone as it was read.
func (l *launch) ensureConfigured(ctx context.Context) (proxmox.VMConfig, error) {
	cfg, err := l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	if err != nil {
		return cfg, err
	}
	if err := l.refuse(cfg); err != nil {
		return cfg, err
	}
	want := shape{
		name: l.claim.Name, id: l.id, instanceType: l.intent.InstanceType,
		cores: l.intent.Cores, memoryMiB: l.intent.MemoryMiB,
		tags: l.class.Spec.Tags, macs: l.intent.MACs,
		firewalled: firewalledInterfaces(l.class), iso: l.driveVolume(), devices: l.intent.Devices,
		network: l.intent.Network, binding: l.intent.Binding,
		shares: l.class.Spec.Shares, hooks: l.class.Spec.HookScripts,
	}
	if l.intent.ISOStorage == "" {
		// Never both: the class may have changed since the launch was planned.
		if want.cloudInit, err = l.Boot.cloudInit(ctx, l.class); err != nil {
			return cfg, err
		}
	}
	change, err := configure(cfg, want)
	if err != nil {
		return cfg, &LaunchError{Reason: ReasonTemplate, err: fmt.Errorf("configuring the clone of template %d on host %s, %w", l.intent.TemplateID, l.intent.TemplateHost, err)}
	}
	return cfg, l.client.UpdateVM(ctx, l.intent.Host, l.intent.VMID, change)
}

// grow begins to bring the boot disk to its size. It stands apart from the write: a
// controller may die between the two.
func (l *launch) grow(ctx context.Context, cfg proxmox.VMConfig) (growth, error) {
	disk, ok := cfg.Drives().Boot()
	if !ok || disk.SizeBytes >= l.intent.DiskBytes {
		return growth{}, nil
	}
	task, err := l.client.ResizeDisk(ctx, l.intent.Host, l.intent.VMID, disk.Slot, l.intent.DiskBytes)
	return growth{slot: disk.Slot, task: task}, err
}

// awaitGrown waits for the end of a growth.
func (l *launch) awaitGrown(ctx context.Context, g growth) error {
	if g.task == "" {
		return nil
	}
	if err := l.wait(ctx, g.task); err != nil {
		return fmt.Errorf("growing disk %s of VM %d on host %s, %w", g.slot, l.intent.VMID, l.intent.Host, err)
	}
	return nil
}

func (l *launch) ensureFirewall(ctx context.Context) error {
	if len(l.class.Spec.SecurityGroups) == 0 {
		return nil
	}
	return l.client.SetFirewall(ctx, l.intent.Host, l.intent.VMID, firewallRules(l.class.Spec.SecurityGroups))
}

func firewalledInterfaces(class *v1alpha1.ProxmoxNodeClass) []string {
	var out []string
	for _, group := range class.Spec.SecurityGroups {
		out = append(out, group.Interface)
	}
	return out
}
