// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// deleteUnneeded deletes from the Host what this ProxmoxTemplate no longer needs:
// Templates of older generations, duplicates, unfinished VMs and images. It returns after
// which time to try again.
func (r *hostReconciler) deleteUnneeded(ctx context.Context) (time.Duration, error) {
	obs, err := r.observe(ctx)
	if err != nil {
		return 0, err
	}
	usage, err := r.usage(ctx)
	if err != nil {
		return 0, err
	}
	after, warnings, err := r.deleteAllObsolete(ctx, obs, usage)
	errs := []error{err}
	if obs.staleLock != 0 {
		busy, err := r.isCreating(ctx)
		if errs = append(errs, explain(err, obs.location, "listing tasks", "")); err == nil && !busy {
			warnings = append(warnings, vm.StaleLockMessage(obs.staleLock, r.Host, lockCreate))
		}
	}
	r.setWarning(strings.Join(warnings, "; "))
	imagesAfter, err := r.sweepIfDue(ctx, obs)
	return soonest(after, imagesAfter), joinErrors(append(errs, err)...)
}

// deleteAllObsolete deletes what is obsolete on the Host. One that cannot be deleted does not
// affect the others. It also returns why some are retained.
func (r *hostReconciler) deleteAllObsolete(ctx context.Context, obs observation, usage Usage) (after time.Duration, warnings []string, err error) {
	var errs []error
	for _, existing := range r.obsolete(obs, usage) {
		if ctx.Err() != nil {
			return 0, nil, context.Cause(ctx)
		}
		deleteAfter, err := r.deleteObsolete(ctx, existing)
		if retained, ok := errors.AsType[*retainedError](err); ok {
			warnings = append(warnings, retained.Error())
			err = nil
		}
		errs = append(errs, explain(err, obs.location, fmt.Sprintf("deleting %s", existing), storageOf(existing)))
		after = soonest(after, deleteAfter)
	}
	return after, warnings, joinErrors(errs...)
}

// obsolete returns the owned Templates and VMs of the Host except the required one. On a Host
// that is excluded by settings, one that would be required is not obsolete.
func (r *hostReconciler) obsolete(obs observation, usage Usage) []Existing {
	keep := 0
	all := slices.Concat(obs.ready, obs.unfinished)
	if obs.required || obs.location.Excluded {
		for _, existing := range all {
			if obs.location.matches(r.desired, existing) && (keep == 0 || usage.InUse(existing.Region, existing.VMID) != "" && usage.InUse(existing.Region, keep) == "") {
				keep = existing.VMID
			}
		}
	}
	var out []Existing
	for _, existing := range all {
		if existing.VMID != keep {
			out = append(out, existing)
		} else {
			r.graceLeft(existing.Zone(), true) // it may become obsolete again
		}
	}
	return out
}

// deleteObsoleteBuilders deletes the builder VMs on the Host that do not become the required
// Template. A new one may have the same address.
func (r *hostReconciler) deleteObsoleteBuilders(ctx context.Context, obs observation) error {
	for _, existing := range obs.unfinished {
		if existing.Mark.Builder == nil || existing.Config.IsTemplate() {
			continue
		}
		err := r.destroyVM(ctx, existing)
		if _, retained := errors.AsType[*retainedError](err); err == nil || retained {
			continue
		}
		// One that is off does no harm. It is deleted with what else is unneeded.
		if status, statusErr := r.client.VMStatus(ctx, r.Host, existing.VMID); statusErr != nil || status.Running {
			return explain(err, obs.location, fmt.Sprintf("deleting builder VM %d", existing.VMID), storageOf(existing))
		}
	}
	return nil
}

// retainedError describes why an obsolete Template was not deleted.
type retainedError struct{ text string }

func (e *retainedError) Error() string { return e.text }

// deleteObsolete destroys a Template that is unneeded for the grace period, or an
// unfinished VM. It returns the remaining time of the grace period.
func (r *hostReconciler) deleteObsolete(ctx context.Context, existing Existing) (time.Duration, error) {
	if existing.Config.IsTemplate() {
		usage, err := r.usage(ctx)
		if err != nil {
			return 0, err
		}
		reason := usage.InUse(existing.Region, existing.VMID)
		left, unneeded := r.graceLeft(existing.Zone(), reason != "")
		if !unneeded {
			return 0, &retainedError{fmt.Sprintf("template %d is obsolete and retained: %s", existing.VMID, reason)}
		}
		if left > 0 && !r.desired.Deleted {
			return left, nil
		}
	}
	err := r.destroyVM(ctx, existing)
	if err != nil && r.desired.Deleted {
		r.tracker.recordDeletionFailure(r.HostKey, r.clock.Now())
	}
	return 0, err
}

// verify reads a VM of the ProxmoxTemplate for a request that must not reach another one. It returns
// errNotOwned for others.
func (r *hostReconciler) verify(ctx context.Context, vmid int, check func(proxmox.VMConfig) error) (*vm.Verified, error) {
	return vm.Verify(ctx, r.client, r.Host, vmid, func(config proxmox.VMConfig) error {
		if _, owned := readOwnedMark(r.kubeCluster, r.UID, vmid, config); !owned {
			return errNotOwned
		}
		return check(config)
	})
}

// errNotOwned means that a VM is no longer that of the ProxmoxTemplate, as the next view shows.
var errNotOwned = errors.New("the VM does not belong to the template")

// checkDestroy returns a retainedError if a VM of the ProxmoxTemplate must not be destroyed now.
func checkDestroy(vmid int, config proxmox.VMConfig) error {
	switch {
	case config.Lock() != "":
		return &retainedError{fmt.Sprintf("template %d is locked (%s) and is deleted after the lock is released", vmid, config.Lock())}
	case config.Protected():
		return &retainedError{fmt.Sprintf("template %[1]d is protected; to allow its deletion, run: qm set %[1]d --protection 0", vmid)}
	}
	return nil
}

// destroyVM destroys a VM or Template after verifying that it is still ours.
func (r *hostReconciler) destroyVM(ctx context.Context, existing Existing) error {
	verified, err := r.verify(ctx, existing.VMID, func(config proxmox.VMConfig) error { return checkDestroy(existing.VMID, config) })
	var status proxmox.TaskStatus
	if err == nil {
		status, err = r.destroyVerified(ctx, verified)
	}
	switch {
	case errors.Is(err, errNotOwned):
		return nil
	case errors.Is(err, proxmox.ErrNotFound):
		r.inventory.Ledger().ObserveDeleted(r.Region, existing.VMID)
		return nil
	case err != nil && strings.Contains(err.Error(), "still in use by linked clone"):
		return &retainedError{fmt.Sprintf("template %d is retained: linked clones on storage %s still use its disk, list them with: qm list; delete them, or remove the ownership mark from the template's notes to keep it",
			existing.VMID, storageOf(existing))}
	case err != nil:
		return err
	}
	// Before the VMID is allocated again.
	r.deleteLeakedDisks(context.WithoutCancel(ctx), existing, status)
	log.FromContext(ctx).Info("deleted template", "vmid", existing.VMID, "host", r.Host, "region", r.Region, "generation", existing.Mark.Generation)
	r.graceLeft(existing.Zone(), true) // the VMID may be used again
	r.requestSweep()
	return nil
}

// destroyVerified stops a builder VM and destroys it, or destroys a Template. It waits for the end also if
// the generation is superseded meanwhile: the warnings of the task name the disks that remain.
func (r *hostReconciler) destroyVerified(ctx context.Context, verified *vm.Verified) (proxmox.TaskStatus, error) {
	vmid := verified.VMID
	if mark, _ := ownership.Read(verified.Config.Description()); mark.Builder != nil {
		if err := r.releaseBuilderVM(ctx, verified, *mark.Builder); err != nil {
			return proxmox.TaskStatus{}, err
		}
	}
	// After a builder VM is stopped: a new one may have the same address.
	if disk, inactive := r.tasks.InactiveDisk(r.Region, r.Host, vmid, verified.Config); inactive {
		return proxmox.TaskStatus{}, &retainedError{fmt.Sprintf(
			"template %d is retained: its disk %s cannot be deleted, because storage %s is not active on host %s; the template is deleted when the storage is active, check it with: pvesm status --storage %s",
			vmid, disk.VolumeID, disk.Storage, r.Host, disk.Storage)}
	}
	status, err := r.tasks.Destroy(ctx, verified)
	if err = waitError(ctx, err); errors.Is(err, errSuperseded) && status.UPID != "" {
		return r.tasks.Wait(context.WithoutCancel(ctx), r.client, status.UPID)
	}
	return status, err
}
