// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// CleanupBootDrive detaches and deletes a VM's boot drive and revokes the join token:
// the guest has joined and needs neither again. It detaches first: Proxmox deletes an
// attached ISO without an error, and the next start would fail.
func (d *Deleter) CleanupBootDrive(ctx context.Context, claim *karpv1.NodeClaim) error {
	in, ok, err := instance.ReadIntent(claim)
	if err != nil {
		return err
	}
	if ok && in.ISOStorage != "" {
		err := d.detachAndDeleteBootDrive(ctx, claim, in)
		if errors.Is(err, instance.ErrNoRoot) {
			// The VM's arguments name the file, so it stays; the token is not needed.
			return errors.Join(err, d.tokens.Revoke(ctx, claim.UID))
		}
		if err != nil {
			return err
		}
	}
	if err := d.tokens.Revoke(ctx, claim.UID); err != nil {
		return fmt.Errorf("deleting the join token: %w", err)
	}
	log.FromContext(ctx).V(1).Info("deleted boot drive and join token")
	return instance.Annotate(ctx, d.deps.Kube, claim, map[string]string{v1alpha1.AnnotationBootDataStatus: v1alpha1.BootDataInitialized})
}

// detachAndDeleteBootDrive empties the drive, or removes the Ignition file from the VM's
// arguments, and then deletes the volume.
func (d *Deleter) detachAndDeleteBootDrive(ctx context.Context, claim *karpv1.NodeClaim, in instance.Intent) error {
	client, err := d.deps.Clients.Get(in.Region)
	if err != nil {
		return err
	}
	ctx, release, ok := d.deps.Guard.AcquireLaunch(ctx, string(claim.UID))
	if !ok {
		// The launch recorded its end and still holds the lock. Without the drive, the
		// cleanup would be recorded as done and never retried.
		return instance.ErrClaimBusy
	}
	defer release()
	host := in.Host
	if guest, ok := d.deps.Inventory.View().Guest(in.Region, in.VMID); ok {
		host = guest.Host
	}
	cfg, err := client.VMConfig(ctx, host, in.VMID)
	if err != nil {
		return err
	}
	id := instance.NewIdentity(d.deps.KubeCluster, in.ID(), claim)
	if owns, why := id.Owns(cfg); !owns {
		return fmt.Errorf("VM %d on host %s does not belong to this NodeClaim: %s", in.VMID, host, why)
	}
	if in.Firmware {
		if err := d.removeIgnitionFile(ctx, in, host, cfg); err != nil {
			return err
		}
	}
	volume := id.BootDriveVolume(in.ISOStorage)
	for _, drive := range cfg.Drives().All() {
		if drive.VolumeID != volume {
			continue
		}
		change := proxmox.ConfigChange{Set: map[string]string{drive.Slot: "none,media=cdrom"}, Digest: cfg.Digest}
		if err := client.UpdateVM(ctx, host, in.VMID, change); err != nil {
			return fmt.Errorf("emptying drive %s: %w", drive.Slot, err)
		}
	}
	// The ISO is on the Host of the launch, even if the VM was migrated.
	return d.deps.Tasks.DeleteVolume(ctx, client, in.Host, volume)
}

// removeIgnitionFile removes the Ignition file from the VM's arguments. On a running VM that
// applies with the next start, which would fail without the file.
func (d *Deleter) removeIgnitionFile(ctx context.Context, in instance.Intent, host string, cfg proxmox.VMConfig) error {
	root, err := d.deps.Roots.Get(in.Region)
	if err == nil {
		err = root.SetIgnitionFile(ctx, host, in.VMID, cfg, "")
	}
	if err != nil {
		return fmt.Errorf("removing the Ignition file of VM %d on host %s as root: %w", in.VMID, host, err)
	}
	return nil
}
