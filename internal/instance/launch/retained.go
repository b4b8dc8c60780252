// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// retained returns the Disks that are kept for the machine.
func (a *attempt) retained() []v1alpha1.Disk {
	return slices.DeleteFunc(slices.Clone(a.intent.Disks), func(d v1alpha1.Disk) bool { return a.intent.Retained[d.Name] == "" })
}

// ensureRetainedDisks creates the disks of the machine that do not exist yet. An existing
// volume is never changed here: Proxmox refuses to create one with its name.
func (a *attempt) ensureRetainedDisks(ctx context.Context) error {
	existing := map[string]bool{}
	listed := map[string]bool{}
	for _, disk := range a.retained() {
		if !listed[disk.Storage] {
			volumes, err := a.client.Volumes(ctx, a.intent.Host, disk.Storage, "images")
			if err != nil {
				return err
			}
			for _, volume := range volumes {
				existing[volume.ID] = true
			}
			listed[disk.Storage] = true
		}
		volume := a.intent.Retained[disk.Name]
		if existing[volume] {
			continue
		}
		err := a.client.CreateVolume(ctx, a.intent.Host, proxmox.NewVolume{ID: volume, VMID: proxmox.RetainedVMID, GiB: disk.GiB()})
		if errors.Is(err, proxmox.ErrExists) {
			continue // the token may not list it, or a request whose response was lost created it
		}
		if err != nil {
			return err
		}
		a.log.Info("created retained disk", "machine", a.intent.Machine, "disk", disk.Name, "volume", volume)
	}
	return nil
}

// retainedReads is how many configurations are read concurrently.
const retainedReads = 8

// checkRetainedDisks returns an error if another VM has a disk of the machine: two guests
// that write to it would destroy its data. The machine has one VM, so it is a VM of an
// administrator, or one that the next poll does not show any more. The launch is retried.
//
// It reads the configurations of all VMs that could have the disk: those in the inventory may
// be hours old.
func (a *attempt) checkRetainedDisks(ctx context.Context) error {
	snapshot := a.deps.Inventory.View().Snapshots[a.intent.Region]
	if len(a.intent.Retained) == 0 || snapshot == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(retainedReads)
	for vmid, guest := range snapshot.Guests {
		volumes := a.retainedOn(snapshot, guest.Host)
		if len(volumes) == 0 || vmid == a.intent.VMID || guest.Kind != proxmox.KindQEMU {
			continue
		}
		group.Go(func() error { return a.checkAttached(ctx, snapshot, guest, volumes) })
	}
	return group.Wait()
}

// retainedOn returns the volumes of the machine that a VM on a Host could have. Those of local
// storages on two Hosts can have the same name.
func (a *attempt) retainedOn(snapshot *observed.Snapshot, host string) []string {
	return slices.DeleteFunc(slices.Collect(maps.Values(a.intent.Retained)), func(volume string) bool {
		storage, _, _ := strings.Cut(volume, ":")
		return host != a.intent.Host && !snapshot.Storages[observed.StorageKey{Host: a.intent.Host, Storage: storage}].Shared
	})
}

// checkAttached returns an error if a guest has one of the volumes. The configuration of one on
// an offline Host is the last known one.
func (a *attempt) checkAttached(ctx context.Context, snapshot *observed.Snapshot, guest observed.Guest, volumes []string) error {
	config := guest.Config
	if snapshot.IsOnline(guest.Host) {
		read, err := a.client.VMConfig(ctx, guest.Host, guest.VMID)
		if errors.Is(err, proxmox.ErrNotFound) {
			return nil
		}
		if err != nil && !instance.IsNotVisible(err) {
			return err
		}
		config = &read
	}
	if config == nil {
		return nil
	}
	for _, drive := range config.Drives().All() {
		if slices.Contains(volumes, drive.VolumeID) {
			return fmt.Errorf("disk %s of machine %s is attached to VM %d on host %s (%s): detach it there", drive.VolumeID, a.intent.Machine, guest.VMID, guest.Host, drive.Slot)
		}
	}
	return nil
}

// growRetainedDisks grows disks of the machine that are smaller than the class requires.
func (a *attempt) growRetainedDisks(ctx context.Context) error {
	disks := a.retained()
	if len(disks) == 0 {
		return nil
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil {
		return err
	}
	for _, disk := range disks {
		drives := cfg.Drives().All()
		i := slices.IndexFunc(drives, func(d proxmox.Drive) bool { return d.VolumeID == a.intent.Retained[disk.Name] })
		if i < 0 || drives[i].SizeBytes == 0 || drives[i].SizeBytes >= disk.GiB()<<30 {
			continue
		}
		if err := a.growDisk(ctx, drives[i].Slot, disk.GiB()<<30); err != nil {
			return err
		}
	}
	return nil
}
