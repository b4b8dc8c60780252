// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// RenderBootData renders the boot data of a builder VM. It returns the ISO image, and the
// hash of the content of the Secrets.
type RenderBootData func(ctx context.Context, prepare *v1alpha1.Preparation, data bootdata.Data) (image []byte, hash string, err error)

// builderInterval is how often a running builder VM is checked.
const builderInterval = 10 * time.Second

// prepare runs the next step of a builder VM: boot it, wait until it powers itself off,
// remove what only the builder needs, and convert it. The step follows from the ownership
// mark and the VM's state.
func (r *hostReconciler) prepare(ctx context.Context, location Location, existing Existing) (time.Duration, error) {
	if lock := existing.Config.Lock(); lock != "" {
		r.tracker.setStep(r.HostKey, fmt.Sprintf("builder VM %d is locked (%s)", existing.VMID, lock))
		return recheckInterval, nil
	}
	switch b := existing.Mark.Builder; {
	case !b.Failed.IsZero(), b.Started.IsZero() && r.isOutdated(*b):
		return r.retryBuilder(ctx, location, existing)
	case !b.Prepared.IsZero():
		return r.convertBuilder(ctx, location, existing)
	case b.Started.IsZero():
		return r.bootBuilder(ctx, location, existing)
	}
	return r.checkBuilder(ctx, location, existing)
}

// bootBuilder starts a builder VM with its boot data and records the start. An earlier
// run may have started it without recording it.
func (r *hostReconciler) bootBuilder(ctx context.Context, location Location, existing Existing) (time.Duration, error) {
	if _, attached := bootDriveSlot(existing); attached {
		started, busy, err := r.findStart(ctx, existing)
		if err != nil {
			return 0, explain(err, location, fmt.Sprintf("inspecting builder VM %d", existing.VMID), "")
		}
		if busy {
			return recheckInterval, nil
		}
		if !started.IsZero() {
			return r.recordStarted(ctx, location, existing, started)
		}
	}
	if err := r.growDisk(ctx, location, existing); err != nil {
		return 0, err
	}
	if err := r.attachBootDrive(ctx, location, existing); err != nil {
		return 0, err
	}
	if !r.tryAcquireBuilder(existing.VMID) { // after a failed start, others may have begun
		return r.waitForOthers(), nil
	}
	task, err := r.startBuilder(ctx, existing.VMID)
	switch step := fmt.Sprintf("starting builder VM %d", existing.VMID); {
	case err == nil, errors.Is(err, proxmox.ErrRunning):
		return r.recordStarted(ctx, location, existing, r.clock.Now())
	case errors.Is(err, proxmox.ErrFailed) && task != "":
		return 0, &stepError{text: step + ": " + cmp.Or(proxmox.StartFailure(ctx, r.client, task), rootMessage(err)), err: err}
	default:
		return 0, explain(err, location, step, "")
	}
}

// startBuilder starts a builder VM and waits until it runs. If it certainly does not, it does not
// count for the limit.
func (r *hostReconciler) startBuilder(ctx context.Context, vmid int) (proxmox.UPID, error) {
	r.tracker.setStep(r.HostKey, fmt.Sprintf("booting builder VM %d", vmid))
	task, err := r.client.StartVM(ctx, r.Host, vmid)
	if err == nil {
		err = r.wait(ctx, r.client, task)
	}
	if err != nil && !errors.Is(err, proxmox.ErrRunning) && !errors.Is(err, errStillRunning) && !proxmox.IsTransient(err) {
		r.tracker.releaseBuilder(r.HostKey)
	}
	return task, err
}

const taskStart = "qmstart"

// findStart returns when an earlier run started a builder VM; the zero time if none did.
// busy is whether the VM is being started.
func (r *hostReconciler) findStart(ctx context.Context, existing Existing) (started time.Time, busy bool, err error) {
	status, err := r.client.VMStatus(ctx, r.Host, existing.VMID)
	if err != nil {
		return time.Time{}, false, err
	}
	if status.Running {
		return r.clock.Now().Add(-time.Duration(status.UptimeSeconds) * time.Second), false, nil
	}
	tasks, err := r.builderTasks(ctx, existing)
	for _, task := range tasks {
		if task.UPID.Kind() != taskStart {
			continue
		}
		busy = busy || task.Running
		if task.Succeeded() {
			started = task.Started
		}
	}
	return started, busy, err
}

// builderTasks returns the tasks of a builder VM since its creation.
func (r *hostReconciler) builderTasks(ctx context.Context, existing Existing) ([]proxmox.TaskStatus, error) {
	tasks, err := r.client.RecentTasks(ctx, r.Host, "", time.Unix(int64(CreationTime(existing.Config)), 0))
	if err != nil {
		return nil, err
	}
	var out []proxmox.TaskStatus
	for _, task := range tasks {
		if task.ID == strconv.Itoa(existing.VMID) {
			out = append(out, task)
		}
	}
	return out, nil
}

// diskRounding is more than storages round the size of a disk up.
const diskRounding = 64 << 20

// growDisk grows the disk of a builder VM to the size in the spec.
func (r *hostReconciler) growDisk(ctx context.Context, location Location, existing Existing) error {
	size, err := r.desired.Spec.Prepare.DiskSize.Bytes()
	if err != nil {
		return fmt.Errorf("reading spec.prepare.diskSize: %w", err)
	}
	disk, ok := existing.Config.Drives().Boot()
	if !ok || size == 0 || disk.SizeBytes >= size && disk.SizeBytes-size < diskRounding {
		return nil
	}
	if disk.SizeBytes > size {
		return fmt.Errorf("spec.prepare.diskSize %s is smaller than the disk of the image, which has %d MiB: set a larger size, or remove it",
			r.desired.Spec.Prepare.DiskSize, disk.SizeBytes>>20)
	}
	r.tracker.setStep(r.HostKey, fmt.Sprintf("growing the disk of builder VM %d", existing.VMID))
	task, err := r.client.ResizeDisk(ctx, r.Host, existing.VMID, disk.Slot, size)
	if err == nil {
		err = r.wait(ctx, r.client, task)
	}
	return explain(err, location, fmt.Sprintf("growing the disk of builder VM %d to spec.prepare.diskSize %s", existing.VMID, r.desired.Spec.Prepare.DiskSize), location.Storage)
}

// recordStarted writes to the ownership mark when a builder VM was started.
func (r *hostReconciler) recordStarted(ctx context.Context, location Location, existing Existing, started time.Time) (time.Duration, error) {
	err := r.writeBuilder(ctx, existing, proxmox.ConfigChange{}, func(b *ownership.Builder) { b.Started = truncate(started) })
	if err != nil {
		return 0, explain(err, location, fmt.Sprintf("recording the start of builder VM %d", existing.VMID), "")
	}
	r.tracker.update(r.HostKey, func(s *hostState) { s.builder, s.failures = existing.VMID, 0 })
	r.publish(corev1.EventTypeNormal, v1alpha1.EventTemplatePreparing, fmt.Sprintf(
		"started builder VM %d on host %s; it must power itself off within %s", existing.VMID, r.displayName(r.Region, r.Host), r.desired.Spec.Prepare.TimeLimit()))
	r.waitForBuilder(existing.VMID, started, "")
	// The first check is early enough to find one that powered off too early.
	return max(min(builderInterval, r.settings.BuilderMinRuntime-2*time.Second), recheckInterval), nil
}

// waitForBuilder reports since when a builder VM runs, and what its guest reports.
func (r *hostReconciler) waitForBuilder(vmid int, started time.Time, progress string) {
	text := fmt.Sprintf("preparing: builder VM %d runs since %s, for at most %s", vmid, started.UTC().Format(time.RFC3339), r.desired.Spec.Prepare.TimeLimit())
	if progress != "" {
		text += ": " + progress
	}
	r.tracker.setStep(r.HostKey, text)
}

// truncate returns a time as the ownership mark stores it.
func truncate(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// writeBuilder changes a builder VM and its ownership mark with one write, after verifying
// that it is still ours.
func (r *hostReconciler) writeBuilder(ctx context.Context, existing Existing, change proxmox.ConfigChange, update func(*ownership.Builder)) error {
	config, err := r.client.VMConfig(ctx, r.Host, existing.VMID)
	if err != nil {
		return err
	}
	mark, owned := readOwnedMark(r.kubeCluster, r.UID, existing.VMID, config)
	if !owned || mark.Builder == nil {
		return fmt.Errorf("the ownership mark of builder VM %d was changed", existing.VMID)
	}
	update(mark.Builder)
	if change.Set == nil {
		change.Set = map[string]string{}
	}
	change.Set["description"], change.Digest = mark.Notes(config.Description()), config.Digest
	err = r.client.UpdateVM(ctx, r.Host, existing.VMID, change)
	r.inventory.InvalidateConfig(r.Region, existing.VMID)
	return err
}

// checkBuilder checks whether a builder VM has powered itself off in time.
func (r *hostReconciler) checkBuilder(ctx context.Context, location Location, existing Existing) (time.Duration, error) {
	status, err := r.client.VMStatus(ctx, r.Host, existing.VMID)
	if err != nil {
		return 0, explain(err, location, fmt.Sprintf("inspecting builder VM %d", existing.VMID), "")
	}
	started, limit := existing.Mark.Builder.Started, r.desired.Spec.Prepare.TimeLimit()
	elapsed := r.clock.Now().Sub(started)
	switch {
	case status.Running && elapsed > limit:
		return r.failBuilder(ctx, location, existing, fmt.Sprintf(
			"it did not power itself off within spec.prepare.timeout %s; check its console, end user-data with a power-off, or raise the timeout%s",
			limit, r.lastOutput(ctx, existing, status)))
	case status.Running:
		progress := r.readGuest(ctx, existing, status)
		if progress.failure != "" {
			return r.failBuilder(ctx, location, existing, progress.failure)
		}
		r.waitForBuilder(existing.VMID, started, progress.text)
		return min(builderInterval, limit-elapsed+time.Second), nil
	}
	cause, err := r.interruption(ctx, existing, elapsed)
	if err != nil {
		return 0, explain(err, location, fmt.Sprintf("inspecting builder VM %d", existing.VMID), "")
	}
	if cause != "" {
		return r.failBuilder(ctx, location, existing, cause)
	}
	return r.completeBuilder(ctx, location, existing, elapsed)
}

// hostRestartMargin is how much the uptime of a Host in the last poll may lag.
const hostRestartMargin = time.Minute

// interruption returns why a builder VM that is off did not complete, or "" if it powered
// itself off. Its guest cannot be asked any more.
func (r *hostReconciler) interruption(ctx context.Context, existing Existing, elapsed time.Duration) (string, error) {
	host := r.inventory.View().Snapshots[r.Region].Hosts[r.Host]
	if uptime := time.Duration(host.UptimeSeconds) * time.Second; uptime > 0 && uptime+hostRestartMargin < elapsed {
		return "the host was restarted meanwhile", nil
	}
	if elapsed < r.settings.BuilderMinRuntime {
		return fmt.Sprintf("it powered off after %s, which is too early for an installation; check that user-data powers it off as its last step only",
			elapsed.Round(time.Second)), nil
	}
	tasks, err := r.builderTasks(ctx, existing)
	if err != nil {
		return "", err
	}
	for _, task := range tasks {
		switch task.UPID.Kind() {
		case "qmstop", "qmshutdown", "qmsuspend", "hastop":
			// Before we stop one, we record that it failed. A task that failed or still runs
			// may have powered the guest off, too.
			if task.UPID.User() != r.client.User() {
				return fmt.Sprintf("it was stopped by %s (task %s)", task.UPID.User(), task.UPID.Kind()), nil
			}
		}
	}
	return "", nil
}

// completeBuilder removes what only the builder VM needs from its configuration.
func (r *hostReconciler) completeBuilder(ctx context.Context, location Location, existing Existing, elapsed time.Duration) (time.Duration, error) {
	now := truncate(r.clock.Now())
	change := proxmox.ConfigChange{Set: map[string]string{"boot": templateBootOrder, "cores": templateCores, "memory": templateMemory}}
	if slot, attached := bootDriveSlot(existing); attached {
		change.Delete = []string{slot}
	}
	r.tracker.setStep(r.HostKey, fmt.Sprintf("cleaning up builder VM %d", existing.VMID))
	if err := r.writeBuilder(ctx, existing, change, func(b *ownership.Builder) { b.Prepared = now }); err != nil {
		return 0, explain(err, location, fmt.Sprintf("cleaning up builder VM %d", existing.VMID), "")
	}
	log.FromContext(ctx).Info("prepared template", "vmid", existing.VMID, "host", r.Host, "region", r.Region, "duration", elapsed.String())
	r.publish(corev1.EventTypeNormal, v1alpha1.EventTemplatePrepared, fmt.Sprintf(
		"builder VM %d on host %s powered itself off after %s and becomes the template", existing.VMID, r.displayName(r.Region, r.Host), elapsed.Round(time.Second)))
	return r.convertBuilder(ctx, location, existing)
}

// convertBuilder deletes the boot drive and converts the builder VM to a Template.
func (r *hostReconciler) convertBuilder(ctx context.Context, location Location, existing Existing) (time.Duration, error) {
	r.tracker.releaseBuilder(r.HostKey)
	if err := r.deleteVolume(ctx, existing.Mark.Builder.BootDrive); err != nil {
		return 0, explain(err, location, fmt.Sprintf("deleting boot drive %s", existing.Mark.Builder.BootDrive), "")
	}
	return r.finishTemplate(ctx, location, existing)
}
