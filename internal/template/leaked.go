// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// leakedDiskRetries is how often a call that deletes a leaked disk is tried.
const leakedDiskRetries = 5

// checkStorages returns a retainedError if a storage of the VM's disks is inactive as of
// the last poll: Proxmox would destroy the VM and leave its disks.
func (r *hostReconciler) checkStorages(vmid int, config proxmox.VMConfig) error {
	view := r.inventory.View()
	for _, drive := range config.Drives().Volumes() {
		if storage, known := view.Storage(r.Region, r.Host, drive.Storage); known && !storage.Available && proxmox.IsDiskOf(drive.VolumeID, vmid) {
			return &retainedError{fmt.Sprintf(
				"template %d is retained: its disk %s cannot be deleted, because storage %s is not active on host %s; the template is deleted when the storage is active, check it with: pvesm status --storage %s",
				vmid, drive.VolumeID, drive.Storage, r.Host, drive.Storage)}
		}
	}
	return nil
}

// waitDestroyed waits for a destroy, also if its generation is superseded meanwhile: the warnings
// of the task name the disks that remain.
func (r *hostReconciler) waitDestroyed(ctx context.Context, task proxmox.UPID) (proxmox.TaskStatus, error) {
	status, err := r.waitStatus(ctx, r.client, task)
	if errors.Is(err, errSuperseded) {
		return r.waitStatus(context.WithoutCancel(ctx), r.client, task)
	}
	return status, err
}

// deleteLeakedDisks deletes the disks that a destroy of the VM left, because their storage
// was locked for too long or became inactive. Only disks that the task's warnings name are
// deleted. No configuration refers to them any more, so an event names those that remain.
func (r *hostReconciler) deleteLeakedDisks(ctx context.Context, existing Existing, destroy proxmox.TaskStatus) {
	if !destroy.HasWarnings() {
		return
	}
	var lines []string
	err := r.retryTransient(ctx, func() (err error) {
		lines, err = r.client.TaskLog(ctx, destroy.UPID)
		return err
	})
	if err != nil {
		r.reportLeak(ctx, existing.VMID, fmt.Sprintf("disks of it may remain, because the log of task %s cannot be read", destroy.UPID), err,
			fmt.Sprintf("list them on the host as root with pvesm list %s --vmid %d and delete them with pvesm free", storageOf(existing), existing.VMID))
		return
	}
	log.FromContext(ctx).Info("destroyed template with warnings", "vmid", existing.VMID, "host", r.Host, "region", r.Region, "task", destroy.UPID, "log", strings.Join(lines, " | "))
	volumes := proxmox.LeakedDisks(lines, existing.VMID)
	if len(volumes) == 0 {
		return
	}
	inUse := r.checkVMIDUnused(ctx, existing.VMID)
	for _, volume := range volumes {
		err := inUse
		if err == nil {
			err = r.retryTransient(ctx, func() error { return r.deleteVolume(ctx, volume) })
		}
		if err != nil && !errors.Is(err, proxmox.ErrNotFound) {
			r.reportLeak(ctx, existing.VMID, fmt.Sprintf("its disk %s could not be deleted", volume), err,
				"if no guest uses the disk, run on the host as root: pvesm free "+volume)
			continue
		}
		log.FromContext(ctx).Info("deleted leaked disk", "vmid", existing.VMID, "host", r.Host, "region", r.Region, "volume", volume)
	}
}

// reportLeak reports which disks of a destroyed VM remain, and how to delete them.
func (r *hostReconciler) reportLeak(ctx context.Context, vmid int, leak string, err error, fix string) {
	message := fmt.Sprintf("template %d is destroyed, but %s: %s; %s", vmid, leak, rootMessage(err), fix)
	log.FromContext(ctx).Error(err, "deleting leaked disks failed", "vmid", vmid, "host", r.Host, "region", r.Region, "message", message)
	r.publish(corev1.EventTypeWarning, v1alpha1.EventTemplateDiskNotDeleted, r.displayName(r.Region, r.Host)+": "+message)
}

// checkVMIDUnused returns an error unless no guest has the VMID of a destroyed VM again: a
// disk with that VMID in its name may belong to that guest.
func (r *hostReconciler) checkVMIDUnused(ctx context.Context, vmid int) error {
	if guest, listed := r.inventory.View().Guest(r.Region, vmid); listed && (guest.Host != r.Host || guest.Kind != proxmox.KindQEMU) {
		return fmt.Errorf("another guest on host %s has VMID %d", guest.Host, vmid)
	}
	_, err := r.client.VMConfig(ctx, r.Host, vmid)
	switch {
	case errors.Is(err, proxmox.ErrNotFound):
		return nil
	case err == nil:
		return fmt.Errorf("another VM on host %s has VMID %d", r.Host, vmid)
	}
	return err
}

// retryTransient retries a call after transient errors, for example if a storage is locked.
func (r *hostReconciler) retryTransient(ctx context.Context, call func() error) (err error) {
	for range leakedDiskRetries {
		if err = call(); !proxmox.IsTransient(err) || r.sleep(ctx, time.Second) != nil {
			return err
		}
	}
	return err
}
