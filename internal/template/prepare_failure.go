// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// preparationBackoff is the delay before a failed preparation is retried. A failed
// builder VM that is kept longer delays it further.
var preparationBackoff = backoff.Exponential{Initial: time.Minute, Max: time.Hour}

// failBuilder records that a preparation failed, and destroys the builder VM after its retention.
func (r *hostReconciler) failBuilder(ctx context.Context, location Location, existing Existing, cause string) (time.Duration, error) {
	b := *existing.Mark.Builder
	b.Failed, b.Failure = truncate(r.clock.Now()), cause
	// Recorded also if it is destroyed, which may fail after it was stopped.
	if err := r.recordFailed(ctx, existing.VMID, b.Failed, cause); err != nil {
		return 0, explain(err, location, fmt.Sprintf("recording the failure of builder VM %d", existing.VMID), "")
	}
	log.FromContext(ctx).Info("preparing template failed", "vmid", existing.VMID, "host", r.Host, "region", r.Region, "cause", cause)
	r.publish(corev1.EventTypeWarning, v1alpha1.EventTemplatePreparationFailed, r.displayName(r.Region, r.Host)+": "+r.failureMessage(existing.VMID, b))
	existing.Mark.Builder = &b
	return r.retryBuilder(ctx, location, existing)
}

// recordFailed writes to the ownership mark that a builder VM must not become a Template. The
// cause is empty if it is only obsolete.
func (r *hostReconciler) recordFailed(ctx context.Context, vmid int, now time.Time, cause string) error {
	return r.writeBuilder(ctx, Existing{VMID: vmid}, proxmox.ConfigChange{}, func(b *ownership.Builder) { b.Failed, b.Failure = now, cause })
}

// failureMessage describes a failed preparation and the next attempt.
func (r *hostReconciler) failureMessage(vmid int, b ownership.Builder) string {
	kept := "it is deleted"
	if retention := r.desired.Spec.Prepare.FailedRetention(); retention > 0 {
		kept = fmt.Sprintf("it is kept for inspection until %s, delete it to retry earlier", b.Failed.Add(retention).UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("preparing the template failed: builder VM %d: %s; %s; next attempt at %s",
		vmid, b.Failure, kept, r.nextAttempt(b).UTC().Format(time.RFC3339))
}

func (r *hostReconciler) nextAttempt(b ownership.Builder) time.Time {
	return b.Failed.Add(max(r.desired.Spec.Prepare.FailedRetention(), preparationBackoff.Delay(b.Attempt-1)))
}

// retryBuilder destroys a failed builder VM after its retention, and at once one that was
// obsolete and is required again, or has other settings than the spec. The next run creates
// another one.
func (r *hostReconciler) retryBuilder(ctx context.Context, location Location, existing Existing) (time.Duration, error) {
	b, delay := *existing.Mark.Builder, time.Millisecond
	if b.Failure != "" && !r.isOutdated(b) {
		if err := r.freeAddress(ctx, location, existing); err != nil {
			return 0, err
		}
		next := r.nextAttempt(b)
		r.tracker.recordBuilderFailure(r.HostKey, existing.VMID, r.failureMessage(existing.VMID, b), b.Attempt, next)
		delay = max(next.Sub(r.clock.Now()), time.Millisecond)
		if left := b.Failed.Add(r.desired.Spec.Prepare.FailedRetention()).Sub(r.clock.Now()); left > 0 {
			return left, nil
		}
	}
	if err := r.destroyVM(ctx, existing); err != nil {
		return 0, explain(err, location, fmt.Sprintf("deleting builder VM %d", existing.VMID), location.Storage)
	}
	return delay, r.inventory.Refresh(ctx, r.Region)
}

// freeAddress stops a failed builder VM if only one may run: another one may have the same
// address.
func (r *hostReconciler) freeAddress(ctx context.Context, location Location, existing Existing) error {
	if r.desired.Spec.Prepare.HostLimit() > 1 {
		return nil
	}
	status, err := r.client.VMStatus(ctx, r.Host, existing.VMID)
	if err == nil && status.Running {
		var verified *vm.Verified
		if verified, err = r.verify(ctx, existing.VMID, func(proxmox.VMConfig) error { return nil }); err == nil {
			err = r.stopBuilder(ctx, verified)
		}
	}
	return explain(err, location, fmt.Sprintf("stopping builder VM %d", existing.VMID), "")
}

// stopBuilder stops a builder VM after its identity was read.
func (r *hostReconciler) stopBuilder(ctx context.Context, verified *vm.Verified) error {
	task, err := verified.PowerOff(ctx, 0)
	if err != nil {
		return err
	}
	return r.wait(ctx, r.client, task)
}

// releaseBuilderVM stops a builder VM and deletes its boot drive before it is destroyed.
func (r *hostReconciler) releaseBuilderVM(ctx context.Context, verified *vm.Verified, b ownership.Builder) error {
	status, err := r.client.VMStatus(ctx, r.Host, verified.VMID)
	if err != nil {
		return err
	}
	if status.Running {
		if b.Failed.IsZero() {
			if err := r.recordFailed(ctx, verified.VMID, truncate(r.clock.Now()), ""); err != nil {
				return err
			}
		}
		verified.Invalidate()
		if err := r.stopBuilder(ctx, verified); err != nil {
			return err
		}
	}
	r.tracker.releaseBuilder(r.HostKey)
	return r.deleteVolume(ctx, b.BootDrive)
}
