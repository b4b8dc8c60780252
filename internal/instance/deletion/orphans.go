// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Orphan is a VM with our ownership mark that garbage collection does not find for a Claim.
type Orphan struct {
	instance.VM
	// HasClaim: its Claim exists and has another VM.
	HasClaim bool
	// Claimant is the name of another Claim whose providerID is that of the VM; empty if there is none.
	Claimant string
	// IsOurClone: a task of our user cloned it.
	IsOurClone bool
}

// unfinishedOrphan is an orphan whose deletion began.
type unfinishedOrphan struct {
	Orphan
	begun time.Time
}

// beginOrphan records that the deletion of an orphan begins, and returns when it first did.
func (d *Deleter) beginOrphan(orphan Orphan) time.Time {
	unfinished := unfinishedOrphan{orphan, d.deps.Clock.Now()}
	if before, ok := d.orphans.LoadOrStore(orphan.ClaimUID, unfinished); ok {
		unfinished, _ = before.(unfinishedOrphan)
	}
	return unfinished.begun
}

// UnfinishedOrphans returns the orphans for which DeleteOrphan of this process has not
// returned true yet. Proxmox may list such a VM no longer, although a disk of it remains.
func (d *Deleter) UnfinishedOrphans() (out []Orphan) {
	for _, value := range d.orphans.Range {
		if unfinished, ok := value.(unfinishedOrphan); ok {
			out = append(out, unfinished.Orphan)
		}
	}
	return out
}

// DeleteOrphan deletes a VM whose Claim does not exist, with its disks, boot drive and join
// token. It keeps boot drive and token if the Claim has another VM. It returns true if all of it
// is deleted, and false to be called again. A *instance.BlockedError explains what prevents the
// deletion.
func (d *Deleter) DeleteOrphan(ctx context.Context, vm Orphan) (bool, error) {
	client, err := d.deps.Clients.Get(vm.Region)
	if err != nil {
		return false, err
	}
	release, ok := d.acquireOrphan(ctx, vm)
	if !ok {
		return false, nil
	}
	defer release()
	// A VM that cannot be deleted must not delay the others.
	ctx, cancel := context.WithTimeout(ctx, d.deps.Settings.OperationTimeout)
	defer cancel()
	begun := d.beginOrphan(vm)
	cfg, found, err := d.deleteVM(ctx, client, vm.Identity, vm.Host, powerOffOptions{inHA: vm.HAState != "", orphan: &vm})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return false, nil // its error is that of the canceled request
	}
	if err != nil && found != vmDestroyed {
		return false, err
	}
	if found != vmDestroyed && found != vmAbsent {
		return false, d.checkOrphanLock(ctx, client, vm.VM, found)
	}
	if owns, _ := vm.Owns(cfg); found == vmAbsent && (owns || len(cfg.Options) == 0) {
		err = d.deleteOrphanedDisks(ctx, client, vm.VM, begun)
	}
	if found == vmDestroyed && vm.AttachedBootDrive() == "" {
		vm.Config = cfg // the Snapshot may be older than the boot drive
	}
	// The rest is deleted even if a disk remains.
	if !vm.HasClaim {
		err = errors.Join(d.releaseOrphan(ctx, client, vm.VM), err)
	}
	if err != nil {
		return false, err
	}
	d.orphans.Delete(vm.ClaimUID)
	return true, nil
}

// acquireOrphan locks the Claim of an orphan. It does not end the launch of a Claim that exists.
func (d *Deleter) acquireOrphan(ctx context.Context, vm Orphan) (release func(), ok bool) {
	if vm.HasClaim {
		_, release, ok = d.deps.Guard.AcquireLaunch(ctx, vm.ClaimUID)
		return release, ok
	}
	return d.deps.Guard.AcquireDelete(ctx, vm.ClaimUID)
}

// CheckOrphan returns a *instance.BlockedError if DeleteOrphan would refuse to destroy a VM with the
// configuration that was last read.
func (d *Deleter) CheckOrphan(ctx context.Context, vm Orphan) error {
	if err := d.checkMark(vm.Identity, vm.Host, vm.Config); err != nil {
		return err
	}
	if err := d.checkOrphan(vm, vm.Config); err != nil {
		return err
	}
	return checkVolumes(ctx, vm.Identity, vm.Host, vm.Config)
}

// checkOrphan returns a *instance.BlockedError if nothing but the ownership mark shows that a VM is
// ours: each user who may edit the notes of a VM can write the mark.
func (d *Deleter) checkOrphan(vm Orphan, cfg proxmox.VMConfig) error {
	var why string
	vmids := d.deps.Settings.VMIDs
	switch {
	case !vmids.Contains(vm.VMID):
		why = fmt.Sprintf("its VMID is not one of the configured VMIDs, which are %d to %d without the excluded ones", vmids.From, vmids.To)
	case vm.Claimant != "":
		why = fmt.Sprintf("the ownership mark in its notes is not that of NodeClaim %s, whose providerID is %s", vm.Claimant, vm.ProviderID())
	case vm.UUID != "":
		why = "another controller created it, and it was adopted"
	case !vm.IsConfirmed(cfg) && !vm.IsOurClone:
		why = "it was never configured, and no task of the token's user that cloned it was found"
	default:
		return nil
	}
	return &instance.BlockedError{Reason: v1alpha1.EventOrphanedVM, Message: fmt.Sprintf("VM %d on host %s of region %s is only deleted by hand, because %s; if it is not in use, run: %s",
		vm.VMID, vm.Host, vm.Region, why, vm.DestroyCommand())}
}

// releaseOrphan deletes what belonged to an orphan besides its VM.
func (d *Deleter) releaseOrphan(ctx context.Context, client proxmox.Client, vm instance.VM) error {
	if volume := vm.AttachedBootDrive(); volume != "" {
		if err := d.deps.Tasks.DeleteVolume(ctx, client, vm.Host, volume); err != nil {
			return err
		}
	}
	d.deps.Inventory.Ledger().Release(vm.ClaimUID)
	d.deps.Launches.Evict(vm.ClaimUID)
	d.abandoned.Delete(vm.ClaimUID)
	return d.tokens.Revoke(ctx, types.UID(vm.ClaimUID))
}

// deleteOrphanedDisks deletes the disks that an earlier destroy of an orphan left.
func (d *Deleter) deleteOrphanedDisks(ctx context.Context, client proxmox.Client, vm instance.VM, begun time.Time) error {
	if guest, listed := d.deps.Inventory.View().Guest(vm.Region, vm.VMID); listed && (guest.Host != vm.Host || guest.Kind != proxmox.KindQEMU) {
		return nil // it was migrated, or the VMID has another owner
	}
	_, err := d.deleteDestroyedDisks(ctx, client, vm.Identity, vm.Host, begun)
	return err
}

// checkOrphanLock returns a BlockedError if a clone or destroy of an orphan left it locked.
func (d *Deleter) checkOrphanLock(ctx context.Context, client proxmox.Client, vm instance.VM, found result) error {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(vm.ClaimUID)}}
	a := &attempt{Deleter: d, client: client, claim: claim, id: vm.Identity}
	_, err := a.confirm(ctx, found, vm.Host)
	return err
}

// BootDrive is a boot drive on a storage.
type BootDrive struct {
	Region, Host, Volume string
	ClaimUID             string
	Created              time.Time
}

var bootDrivePattern = regexp.MustCompile(`:iso/karpenter-([0-9a-f]+)-([0-9a-f-]{36})\.iso$`)

// ListBootDrives lists boot drives of this Kubernetes cluster, with one request per Host
// and storage: all storages the first time, then one storage whenever the call budget
// allows it, so most calls send no request and return none. Storages that cannot be
// listed now are in the error.
func (d *Deleter) ListBootDrives(ctx context.Context) ([]BootDrive, error) {
	var out []BootDrive
	var errs []error
	for region, snapshot := range d.deps.Inventory.View().Snapshots {
		client, err := d.deps.Clients.Get(region)
		if err != nil {
			continue
		}
		budget := d.deps.Inventory.TryAcquire(region, poll.ReadBootDrives)
		for _, key := range d.nextStorages(region, isoStorages(snapshot), budget) {
			_, err := d.drives.Read(ctx, storageOf{region, key}, func(ctx context.Context) (struct{}, error) {
				drives, err := d.readBootDrives(ctx, client, key)
				out = append(out, drives...)
				return struct{}{}, err
			})
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// readBootDrives lists the boot drives of this Kubernetes cluster on a storage.
func (d *Deleter) readBootDrives(ctx context.Context, client proxmox.Client, key observed.StorageKey) ([]BootDrive, error) {
	volumes, err := client.Volumes(ctx, key.Host, key.Storage, "iso")
	if err != nil {
		return nil, err
	}
	var out []BootDrive
	for _, volume := range volumes {
		found := bootDrivePattern.FindStringSubmatch(volume.ID)
		if found == nil || found[1] != instance.ShortClusterID(d.deps.KubeCluster) {
			continue
		}
		out = append(out, BootDrive{Region: client.Region(), Host: key.Host, Volume: volume.ID, ClaimUID: found[2], Created: volume.Created})
	}
	return out, nil
}

// deleteFoundBootDrives deletes the boot drive of a Claim whose plan is not known,
// wherever it is. Garbage collection finds what cannot be deleted now.
func (a *attempt) deleteFoundBootDrives(ctx context.Context) {
	snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]
	if snapshot == nil {
		return
	}
	// The deletion must end even if a storage responds slowly.
	ctx, cancel := context.WithTimeout(ctx, a.deps.Settings.OperationTimeout/2)
	defer cancel()
	for _, key := range isoStorages(snapshot) {
		if ctx.Err() != nil {
			return
		}
		drives, err := a.readBootDrives(ctx, a.client, key)
		for _, drive := range drives {
			if drive.ClaimUID == a.id.ClaimUID {
				err = errors.Join(err, a.DeleteBootDrive(ctx, drive))
			}
		}
		if err != nil {
			log.FromContext(ctx).Error(err, "deleting boot drive failed", "host", key.Host, "storage", key.Storage)
		}
	}
}

// DeleteBootDrive deletes a boot drive whose Claim does not exist.
func (d *Deleter) DeleteBootDrive(ctx context.Context, drive BootDrive) error {
	client, err := d.deps.Clients.Get(drive.Region)
	if err != nil {
		return err
	}
	return d.deps.Tasks.DeleteVolume(ctx, client, drive.Host, drive.Volume)
}

// nextStorages returns the storages to list: those of a region that were never listed, or if there is budget
// for a request, the one that was not listed for the longest time.
func (d *Deleter) nextStorages(region string, keys []observed.StorageKey, budget bool) (next []observed.StorageKey) {
	var oldest []observed.StorageKey
	var oldestAge time.Duration
	for _, key := range keys {
		entry, age, isDue := d.drives.Peek(storageOf{region, key})
		if !entry.Known && isDue {
			next = append(next, key)
		} else if age >= oldestAge {
			oldest, oldestAge = []observed.StorageKey{key}, age
		}
	}
	if len(next) == 0 && budget {
		return oldest
	}
	return next
}

// storageOf is a storage of a Host of a region.
type storageOf struct {
	region string
	observed.StorageKey
}

// isoStorages returns the storages for boot drives: local ones of each online Host,
// shared ones once.
func isoStorages(snapshot *observed.Snapshot) []observed.StorageKey {
	var out []observed.StorageKey
	seen := map[string]bool{}
	for key, row := range snapshot.Storages {
		if !slices.Contains(row.Content, "iso") || !row.Available || !snapshot.IsOnline(key.Host) || (row.Shared && seen[key.Storage]) {
			continue
		}
		seen[key.Storage] = seen[key.Storage] || row.Shared
		out = append(out, key)
	}
	return out
}
