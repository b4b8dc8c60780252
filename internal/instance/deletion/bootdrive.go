// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// BootDriveError means that a boot drive could not be deleted.
type BootDriveError struct {
	// Volume is that of the boot drive.
	Volume string
	Err    error
}

func (e *BootDriveError) Error() string {
	return fmt.Sprintf("boot drive %s with the boot data of the node is not deleted: %v", e.Volume, e.Err)
}

func (e *BootDriveError) Unwrap() error { return e.Err }

// CleanupBootDrive revokes the join token of a VM, and detaches and deletes its boot drive: the guest
// has joined and needs neither again. The mark in the VM's notes shows that the drive is left to do. It
// detaches first: Proxmox deletes an attached ISO without an error, and the next start would fail. If
// the process ends before the deletion, garbage collection does it. It returns a *BootDriveError if the drive
// could not be detached or deleted, and instance.ErrNotPolled while the configuration of the VM was not
// read, or not since it was changed.
func (d *Deleter) CleanupBootDrive(ctx context.Context, claim *karpv1.NodeClaim) error {
	in, ok := d.deps.Launches.Plan(string(claim.UID))
	if !ok {
		if in, ok = d.deps.IntentOf(claim); ok && !(in.Known && d.deps.Inventory.HasCurrentConfig(in.Region, in.VMID)) {
			return instance.ErrNotPolled
		}
	}
	if !ok || in.ISOStorage == "" {
		return nil
	}
	// The token does not stay valid while the boot drive cannot be deleted: its Host may be
	// offline for a long time, or the VM's arguments name the file and there is no login of root.
	if err := d.tokens.Revoke(ctx, claim.UID); err != nil {
		return fmt.Errorf("deleting the join token: %w", err)
	}
	id := instance.NewIdentity(d.deps.KubeCluster, in.ID(), claim)
	if err := d.detachAndDeleteBootDrive(ctx, claim, in, id); err != nil {
		return &BootDriveError{Volume: id.BootDriveVolume(in.ISOStorage), Err: err}
	}
	log.FromContext(ctx).V(1).Info("deleted boot drive and join token")
	return nil
}

// detachAndDeleteBootDrive empties the drive, or removes the Ignition file from the VM's
// arguments, and then deletes the volume.
func (d *Deleter) detachAndDeleteBootDrive(ctx context.Context, claim *karpv1.NodeClaim, in instance.Intent, id instance.Identity) error {
	client, err := d.deps.Clients.Get(in.Region)
	if err != nil {
		return err
	}
	ctx, release, ok := d.deps.Guard.AcquireLaunch(ctx, string(claim.UID))
	if !ok {
		return instance.ErrClaimBusy
	}
	defer release()
	host := in.Host
	if guest, listed := d.deps.Inventory.View().Guest(in.Region, in.VMID); listed {
		host = guest.Host // it may have been migrated
	}
	if in.Firmware {
		if err := d.removeIgnitionFile(ctx, id, in, host, client); err != nil {
			return err
		}
	}
	volume := id.BootDriveVolume(in.ISOStorage)
	if err := d.deps.ChangeVM(ctx, id, host, func(cfg proxmox.VMConfig, mark *ownership.Mark) map[string]string {
		mark.Boot = nil
		set := map[string]string{}
		for _, drive := range cfg.Drives().All() {
			if drive.VolumeID == volume {
				set[drive.Slot] = "none,media=cdrom"
			}
		}
		return set
	}); err != nil {
		return fmt.Errorf("emptying the drive: %w", err)
	}
	from, reachable := d.bootDriveHost(in, host)
	if !reachable {
		// A request would fail as well, after up to 30 s.
		return fmt.Errorf("deleting volume %s: %w: host %s is offline", volume, proxmox.ErrHostUnreachable, from)
	}
	if err := d.deps.Tasks.DeleteVolume(ctx, client, from, volume); err != nil {
		return err
	}
	d.deps.Launches.RecordCleanedUp(string(claim.UID))
	return nil
}

// bootDriveHost returns the Host that can delete the boot drive. That is the Host of the launch,
// even if the VM was migrated. If it is offline and the storage is shared, it is another Host.
// Without such a Host, it returns that of the launch and false. The Host of the VM has just
// responded, even if the last poll shows it as offline.
func (d *Deleter) bootDriveHost(in instance.Intent, vmHost string) (host string, reachable bool) {
	snapshot := d.deps.Inventory.View().Snapshots[in.Region]
	if snapshot == nil || in.Host == vmHost || snapshot.IsOnline(in.Host) {
		return in.Host, true
	}
	for _, key := range isoStorages(snapshot) {
		if key.Storage == in.ISOStorage && snapshot.Storages[key].Shared {
			return key.Host, true
		}
	}
	return in.Host, false
}

// deleteBootDriveVolume deletes the boot drive of a VM that is confirmed deleted. It does not wait
// for a Host that is offline: garbage collection finds the boot drive when the Host is back, and
// an administrator could not end the wait, because the VM may have been deleted on another Host.
func (a *attempt) deleteBootDriveVolume(ctx context.Context, vmHost string) error {
	volume := a.id.BootDriveVolume(a.intent.ISOStorage)
	host, reachable := a.bootDriveHost(a.intent, vmHost)
	if !reachable {
		log.FromContext(ctx).Info("keeping boot drive for garbage collection, because its host is offline",
			"volume", volume, "vmid", a.id.VMID, "host", host, "region", a.id.Region)
		return nil
	}
	return blocked(a.deps.Tasks.DeleteVolume(ctx, a.client, host, volume), unreachable(host))
}

// removeIgnitionFile removes the Ignition file from the VM's arguments. On a running VM that
// applies with the next start, which would fail without the file.
func (d *Deleter) removeIgnitionFile(ctx context.Context, id instance.Identity, in instance.Intent, host string, client proxmox.Client) error {
	cfg, err := client.VMConfig(ctx, host, id.VMID)
	if err != nil {
		return err
	}
	if owns, why := id.Owns(cfg); !owns {
		return fmt.Errorf("VM %d on host %s does not belong to this NodeClaim: %s", id.VMID, host, why)
	}
	root, err := d.deps.RootClients.Get(in.Region)
	if err == nil {
		err = root.Set(ctx, host, in.VMID, cfg, proxmox.RootOptions{IgnitionFile: new("")})
	}
	if err != nil {
		return fmt.Errorf("removing the Ignition file of VM %d on host %s as root: %w", in.VMID, host, err)
	}
	return nil
}
