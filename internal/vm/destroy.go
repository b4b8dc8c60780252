// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ErrBusy means that a VM is not destroyed yet, because other VMs on its storage are.
var ErrBusy = errors.New("other VMs on the storage are being destroyed")

// Destroy destroys a VM that is powered off and waits for the end of the task. The status has the
// UPID also if the wait fails. It returns ErrBusy if the context ends before the request.
func (t *Tasks) Destroy(ctx context.Context, v *Verified) (proxmox.TaskStatus, error) {
	disk, _ := v.Config.Drives().Boot()
	release, err := t.AcquireSlot(ctx, TaskDestroy, v.client.Region(), v.Host, disk.Storage)
	if errors.Is(err, context.DeadlineExceeded) {
		return proxmox.TaskStatus{}, ErrBusy
	}
	if err != nil {
		return proxmox.TaskStatus{}, err
	}
	defer release()
	v.Invalidate()
	task, err := v.do(ctx, func() (proxmox.UPID, error) { return v.client.DestroyVM(ctx, v.Host, v.VMID) })
	if err != nil {
		return proxmox.TaskStatus{}, err
	}
	status, err := t.Wait(ctx, v.client, task)
	status.UPID = task
	if err == nil {
		t.inventory.Ledger().ObserveDeleted(v.client.Region(), v.VMID)
	}
	return status, err
}

// InactiveDisk returns a disk of a VM whose storage is inactive as of the last poll: Proxmox would destroy
// the VM and leave the disk, which tokens with few privileges cannot delete.
func (t *Tasks) InactiveDisk(region, host string, vmid int, cfg proxmox.VMConfig) (proxmox.Drive, bool) {
	view := t.inventory.View()
	for _, drive := range cfg.Drives().Volumes() {
		if storage, known := view.Storage(region, host, drive.Storage); known && !storage.Available && proxmox.IsDiskOf(drive.VolumeID, vmid) {
			return drive, true
		}
	}
	return proxmox.Drive{}, false
}

// LeakError is why a disk of a VM that does not exist was not deleted.
type LeakError struct {
	Volume string
	Err    error
}

func (e *LeakError) Error() string { return e.Err.Error() }

func (e *LeakError) Unwrap() error { return e.Err }

// DeleteLeakedDisks deletes the disks that a destroy of a VM left, because their storage was locked for too
// long or was inactive. No configuration refers to them any more. Only disks that the task's warnings name
// are deleted: another VM may have the VMID by now, but not that disk. It returns the error of reading the
// log, and a *LeakError for each disk that remains.
func (t *Tasks) DeleteLeakedDisks(ctx context.Context, c proxmox.Client, vmid int, destroy proxmox.TaskStatus) (leaks []*LeakError, err error) {
	if !destroy.HasWarnings() {
		return nil, nil
	}
	var lines []string
	if err := t.retry(ctx, func() (err error) {
		lines, err = c.TaskLog(ctx, destroy.UPID)
		return err
	}); err != nil {
		return nil, err
	}
	host := destroy.UPID.Host()
	log.FromContext(ctx).Info("destroyed VM with warnings", "vmid", vmid, "host", host, "region", c.Region(), "task", destroy.UPID, "log", strings.Join(lines, " | "))
	return t.DeleteDisks(ctx, c, host, vmid, proxmox.LeakedDisks(lines, vmid)), nil
}

// DeleteDisks deletes leaked disks, unless a guest has the VMID again: a disk of that name
// may be its own. It logs errors.
func (t *Tasks) DeleteDisks(ctx context.Context, c proxmox.Client, host string, vmid int, volumes []string) (leaks []*LeakError) {
	if len(volumes) == 0 {
		return nil
	}
	unused := t.checkUnused(ctx, c, host, vmid)
	for _, volume := range volumes {
		log := log.FromContext(ctx).WithValues("vmid", vmid, "host", host, "region", c.Region(), "volume", volume)
		err := unused
		if err == nil {
			err = t.retry(ctx, func() error { return t.DeleteVolume(ctx, c, host, volume) })
		}
		if err == nil {
			log.Info("deleted leaked disk")
			continue
		}
		log.Error(err, "deleting leaked disk failed, to delete it by hand run the command on the host as root", "command", "pvesm free "+volume)
		leaks = append(leaks, &LeakError{Volume: volume, Err: err})
	}
	return leaks
}

// ErrVMIDInUse means that another guest has the VMID of a destroyed VM.
var ErrVMIDInUse = errors.New("another guest has the VMID")

// checkUnused returns ErrVMIDInUse if another guest has the VMID of a destroyed VM.
func (t *Tasks) checkUnused(ctx context.Context, c proxmox.Client, host string, vmid int) error {
	if guest, listed := t.inventory.View().Guest(c.Region(), vmid); listed && (guest.Host != host || guest.Kind != proxmox.KindQEMU) {
		return fmt.Errorf("%w %d on host %s", ErrVMIDInUse, vmid, guest.Host)
	}
	_, err := c.VMConfig(ctx, host, vmid)
	_, hidden := errors.AsType[*proxmox.ForbiddenError](err)
	switch {
	case errors.Is(err, proxmox.ErrNotFound):
		return nil
	case err == nil, hidden:
		return fmt.Errorf("%w %d on host %s", ErrVMIDInUse, vmid, host)
	}
	return err
}

// retries is how often a call that deletes a leaked disk is tried.
const retries = 5

// retry retries a call after transient errors, for example if a storage is locked.
func (t *Tasks) retry(ctx context.Context, call func() error) (err error) {
	for range retries {
		if err = call(); !proxmox.IsTransient(err) {
			return err
		}
		select {
		case <-t.clock.After(time.Second):
		case <-ctx.Done():
			return err
		}
	}
	return err
}
