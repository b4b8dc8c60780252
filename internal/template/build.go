// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// build creates the Template. It resumes from what an earlier run created: nothing, an
// image, a VM, or a Template that the view does not show yet.
func (r *hostReconciler) build(ctx context.Context, obs observation, creating bool) (time.Duration, error) {
	for _, existing := range obs.unfinished {
		if !obs.location.matches(r.desired, existing) {
			continue
		}
		if existing.Config.IsTemplate() {
			r.tracker.setStep(r.HostKey, "created, waiting for the next poll")
			return recheckInterval, nil
		}
		return r.advance(ctx, obs.location, existing)
	}
	if creating {
		r.tracker.setStep(r.HostKey, "waiting for a VM creation on the host that may be this template")
		return recheckInterval, nil
	}
	if err := r.deleteObsoleteBuilders(ctx, obs); err != nil {
		return 0, err
	}
	r.reportMissingBuilder()
	if obs.staleLock != 0 {
		r.setWarning(vm.StaleLockMessage(obs.staleLock, r.Host, lockCreate))
	}
	volume, err := r.ensureImage(ctx, obs.location)
	if err != nil {
		return 0, err
	}
	if r.desired.Spec.Prepare != nil && !r.tryAcquireBuilder(0) {
		return r.waitForOthers(), nil
	}
	existing, err := r.createVM(ctx, obs.location, volume)
	if err != nil {
		return 0, err
	}
	return r.advance(ctx, obs.location, existing)
}

// advance runs the next step of a VM that becomes the Template.
func (r *hostReconciler) advance(ctx context.Context, location Location, existing Existing) (time.Duration, error) {
	if existing.Mark.Builder != nil {
		return r.prepare(ctx, location, existing)
	}
	return r.finishTemplate(ctx, location, existing)
}

func (r *hostReconciler) setWarning(text string) {
	r.tracker.update(r.HostKey, func(s *hostState) { s.warning = text })
}

// isCreating reports whether a VM in the VMID range of Templates is being created on
// the Host. Its ownership mark is not readable before the task ends, so it may be ours.
func (r *hostReconciler) isCreating(ctx context.Context) (bool, error) {
	tasks, err := r.client.RunningTasks(ctx, r.Host, "qmcreate")
	if err != nil {
		return false, err
	}
	vmids := r.settings.VMIDs
	return slices.ContainsFunc(tasks, func(task proxmox.TaskStatus) bool {
		vmid, err := strconv.Atoi(task.ID)
		return err == nil && vmid >= vmids.From && vmid <= vmids.To && !r.isReservedElsewhere(vmid)
	}), nil
}

// maxVMIDAttempts limits how many VMIDs are tried when Proxmox reports them as taken.
const maxVMIDAttempts = 20

// reservation is the name of the Reservation of a Host.
func (k HostKey) reservation() string { return k.UID + "/" + k.Region + "/" + k.Host }

// isReservedElsewhere reports whether this process creates the VM for another Host or ProxmoxTemplate.
func (r *hostReconciler) isReservedElsewhere(vmid int) bool {
	for name, reserved := range r.inventory.View().Reservations {
		if reserved.Template && reserved.Region == r.Region && reserved.VMID == vmid && name != r.reservation() {
			return true
		}
	}
	return false
}

// reserve reserves the lowest free VMID from the given one on, and the capacity of a builder VM.
func (r *hostReconciler) reserve(from int) (int, error) {
	r.inventory.Ledger().Release(r.reservation())
	reserved, err := r.inventory.Ledger().Reserve(r.reservation(), func(view inventory.View) (inventory.Reservation, error) {
		vmids := r.settings.VMIDs
		reserved := inventory.Reservation{Template: true, Region: r.Region, Host: r.Host}
		if prepare := r.desired.Spec.Prepare; prepare != nil {
			reserved.Amount = observed.Amount{CPUs: prepare.CPUs(), MemoryBytes: int64(prepare.MemoryMiB()) << 20}
		}
		for reserved.VMID = max(from, vmids.From); reserved.VMID <= vmids.To; reserved.VMID++ {
			if !view.IsVMIDTaken(r.Region, reserved.VMID) && vmids.Contains(reserved.VMID) {
				return reserved, nil
			}
		}
		return reserved, fmt.Errorf("no VMID from %d to %d is free for templates in region %s; raise --proxmox-template-vmid-max: %w", vmids.From, vmids.To, r.Region, placement.ErrRangeFull)
	})
	return reserved.VMID, err
}

// createVM creates a VM with the image as its disk.
func (r *hostReconciler) createVM(ctx context.Context, location Location, volume string) (Existing, error) {
	vmid := 0
	for range maxVMIDAttempts {
		var err error
		if vmid, err = r.reserve(vmid + 1); err != nil {
			return Existing{}, err
		}
		mark := r.newMark(vmid)
		if r.desired.Spec.Prepare != nil {
			mark.Builder = r.newBuilder(location, vmid)
		} else if len(r.desired.Spec.Tags) == 0 {
			mark.Settings = r.desired.Settings // the create request writes all of them
		}
		r.tracker.setStep(r.HostKey, fmt.Sprintf("importing the image to storage %s", location.Storage))
		task, err := r.client.CreateVM(ctx, proxmox.CreateRequest{
			Host: r.Host, VMID: vmid, Pool: r.desired.Spec.ResourcePool, Options: createOptions(r.desired, location, volume, mark),
		})
		if errors.Is(err, proxmox.ErrExists) {
			continue // another client took the VMID
		}
		if err == nil {
			err = r.wait(ctx, r.client, task)
		}
		if err != nil {
			return Existing{}, explain(err, location, fmt.Sprintf("creating VM %d", vmid), location.Storage)
		}
		config, err := r.client.VMConfig(ctx, r.Host, vmid)
		if err != nil {
			return Existing{}, explain(err, location, fmt.Sprintf("reading VM %d", vmid), "")
		}
		return Existing{Region: r.Region, Host: r.Host, VMID: vmid, Mark: mark, Config: config}, nil
	}
	return Existing{}, fmt.Errorf("creating the VM: %d VMIDs in a row were taken by other guests", maxVMIDAttempts)
}

func (r *hostReconciler) newMark(vmid int) ownership.Mark {
	return ownership.Mark{
		VMID: vmid, KubeCluster: r.kubeCluster, Name: r.desired.Name, TemplateUID: r.desired.UID, Generation: r.desired.Hash,
		Hash: r.desired.Hash, HashVersion: v1alpha1.HashVersion, Pool: r.desired.Spec.ResourcePool,
	}
}

// finishTemplate writes the settings of a VM and converts it to a Template.
func (r *hostReconciler) finishTemplate(ctx context.Context, location Location, existing Existing) (time.Duration, error) {
	if lock := existing.Config.Lock(); lock != "" {
		r.tracker.setStep(r.HostKey, fmt.Sprintf("VM %d is locked (%s)", existing.VMID, lock))
		return recheckInterval, nil
	}
	if owned, err := r.updateInPlace(ctx, location, existing); !owned || err != nil {
		return recheckInterval, err
	}
	r.tracker.setStep(r.HostKey, "converting to a template")
	task, err := r.client.ConvertToTemplate(ctx, r.Host, existing.VMID)
	if err == nil {
		err = r.wait(ctx, r.client, task)
	}
	if err != nil {
		// A conversion that an earlier run started may have ended meanwhile.
		if config, readErr := r.client.VMConfig(ctx, r.Host, existing.VMID); readErr != nil || !config.IsTemplate() {
			return 0, explain(err, location, fmt.Sprintf("converting VM %d to a template", existing.VMID), location.Storage)
		}
	}
	r.requestSweep()
	return recheckInterval, r.inventory.Refresh(ctx, r.Region)
}

// updateInPlace writes the settings that are updated in place, after verifying that the
// VM is still ours. If it is not, as the next view shows, it returns false.
func (r *hostReconciler) updateInPlace(ctx context.Context, location Location, existing Existing) (owned bool, err error) {
	if r.desired.isWritten(existing.Mark) {
		return true, nil
	}
	config, err := r.client.VMConfig(ctx, r.Host, existing.VMID)
	if err != nil {
		return false, explain(err, location, fmt.Sprintf("reading template %d", existing.VMID), "")
	}
	mark, owned := readOwnedMark(r.kubeCluster, r.UID, existing.VMID, config)
	if !owned {
		return false, nil
	}
	if r.desired.isWritten(mark) {
		return true, nil
	}
	err = r.writeSettings(ctx, location, existing, config, mark)
	return true, explain(err, location, fmt.Sprintf("writing the settings of template %d", existing.VMID), "")
}

func (r *hostReconciler) writeSettings(ctx context.Context, location Location, existing Existing, config proxmox.VMConfig, mark ownership.Mark) error {
	if pool := r.desired.Spec.ResourcePool; mark.Pool != pool {
		if err := r.client.MoveToPool(ctx, existing.VMID, mark.Pool, pool); err != nil {
			return err
		}
	}
	// The generation is kept: it identifies the image of the disk.
	generation := mark.Generation
	mark = r.newMark(existing.VMID)
	mark.Settings, mark.Generation = r.desired.Settings, generation
	err := r.client.UpdateVM(ctx, r.Host, existing.VMID, newConfigChange(r.desired, location, config, mark))
	r.inventory.InvalidateConfig(r.Region, existing.VMID)
	return err
}
