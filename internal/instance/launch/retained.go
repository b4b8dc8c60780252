// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
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

// checkRetainedDisks returns an error if another VM has a disk of the machine: two guests
// that write to it would destroy its data. The machine has one VM, so it is a VM of an
// administrator, or one that the next poll does not show any more. The launch is retried.
func (a *attempt) checkRetainedDisks() error {
	snapshot := a.deps.Inventory.View().Snapshots[a.intent.Region]
	if len(a.intent.Retained) == 0 || snapshot == nil {
		return nil
	}
	volumes := slices.Collect(maps.Values(a.intent.Retained))
	for vmid, guest := range snapshot.Guests {
		if guest.Config == nil || vmid == a.intent.VMID {
			continue
		}
		for _, drive := range guest.Config.Drives().All() {
			// Volumes of local storages on two Hosts can have the same name.
			storage := snapshot.Storages[inventory.StorageKey{Host: guest.Host, Storage: drive.Storage}]
			if slices.Contains(volumes, drive.VolumeID) && (guest.Host == a.intent.Host || storage.Shared) {
				return fmt.Errorf("disk %s of machine %s is attached to VM %d on host %s (%s): detach it there", drive.VolumeID, a.intent.Machine, vmid, guest.Host, drive.Slot)
			}
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
		task, err := a.client.ResizeDisk(ctx, a.intent.Host, a.intent.VMID, drives[i].Slot, disk.GiB()<<30)
		if err == nil {
			_, err = a.wait(ctx, task)
		}
		if err != nil {
			return a.resizeError(resize{slot: drives[i].Slot}, err)
		}
	}
	return nil
}
