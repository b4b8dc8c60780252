// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// result of one attempt to delete a VM.
type result int

const (
	// vmAbsent: our VM is not on that Host; its VMID may have another owner.
	vmAbsent result = iota
	// vmDestroyed: this attempt destroyed it.
	vmDestroyed
	// vmRemaining: it still exists, or that is unknown; retry.
	vmRemaining
	// vmCloning: a clone still writes it.
	vmCloning
	// vmDestroying: a destroy is in progress.
	vmDestroying
)

// powerOffOptions define how a VM is powered off.
type powerOffOptions struct {
	// shutdown is how long the guest may take to shut down; if it is 0, the VM is stopped.
	shutdown time.Duration
	// inHA is set if the last Snapshot shows the VM in HA.
	inHA     bool
	nodePool string
	// orphan is set if the VM has no Claim.
	orphan *Orphan
}

// Error makes a result the error of a check, if it is why a VM is not deleted now.
func (r result) Error() string { return fmt.Sprintf("result %d", int(r)) }

// resultOf returns the result that an error of a vm.Verified means.
func resultOf(err error, id instance.Identity, host string) (result, error) {
	if found, ok := errors.AsType[result](err); ok {
		return found, nil
	}
	if errors.Is(err, proxmox.ErrNotFound) {
		return vmAbsent, nil
	}
	return vmRemaining, blocked(err, fmt.Sprintf("%s; VM %d will be deleted when it is back", unreachable(host), id.VMID))
}

// deleteVM powers off and destroys a VM after its ownership was verified. It returns the
// configuration that it read first.
func (d *Deleter) deleteVM(ctx context.Context, c proxmox.Client, id instance.Identity, host string, options powerOffOptions) (proxmox.VMConfig, result, error) {
	verified, err := instance.VerifyVM(ctx, c, id, host, func(cfg proxmox.VMConfig) error { return d.checkDeletable(ctx, id, host, cfg, options) })
	cfg := verified.Config
	if err != nil {
		found, err := resultOf(err, id, host)
		return cfg, found, err
	}
	mark, _ := ownership.Read(cfg.Description())
	if ha := instance.AppliedHA(mark); options.inHA || ha != nil {
		if err := d.removeFromHA(ctx, id, options, ha); err != nil {
			return cfg, vmRemaining, blocked(err, unreachable(host))
		}
		verified.Invalidate()
	}
	if err := d.powerOff(ctx, c, id, verified, options.shutdown); err != nil {
		found, err := resultOf(err, id, host)
		return cfg, found, err
	}
	destroyed, err := d.destroy(ctx, c, id, verified)
	return cfg, destroyed, err
}

// checkDeletable returns a result or a BlockedError unless a VM may be powered off and destroyed.
func (d *Deleter) checkDeletable(ctx context.Context, id instance.Identity, host string, cfg proxmox.VMConfig, options powerOffOptions) error {
	switch cfg.Lock() {
	case "":
	case instance.LockClone:
		return vmCloning
	case instance.LockDestroyed:
		return vmDestroying
	default:
		return &instance.BlockedError{Reason: v1alpha1.EventVMLocked, Message: fmt.Sprintf(
			"VM %d on host %s is locked (%s); it will be deleted when the lock is gone", id.VMID, host, cfg.Lock())}
	}
	if cfg.IsTemplate() {
		log.FromContext(ctx).Info("keeping VM that was converted to a template", "vmid", id.VMID, "host", host, "region", id.Region)
		return vmAbsent
	}
	if err := d.checkMark(id, host, cfg); err != nil {
		return err
	}
	if owns, why := id.Owns(cfg); !owns {
		log.FromContext(ctx).Info("skipping VM not owned by this cluster", "vmid", id.VMID, "host", host, "reason", why)
		return vmAbsent
	}
	return d.checkBlocked(ctx, id, host, cfg, options)
}

// checkBlocked returns a BlockedError if something prevents the deletion of our VM.
func (d *Deleter) checkBlocked(ctx context.Context, id instance.Identity, host string, cfg proxmox.VMConfig, options powerOffOptions) error {
	if options.orphan != nil {
		if err := d.checkOrphan(*options.orphan, cfg); err != nil {
			return err
		}
	}
	if cfg.Protected() {
		return &instance.BlockedError{Reason: v1alpha1.EventVMProtected, Message: fmt.Sprintf(
			"VM %d on host %s is protected; to allow its deletion, run: qm set %d --protection 0", id.VMID, host, id.VMID)}
	}
	if err := checkVolumes(ctx, id, host, cfg); err != nil {
		return err
	}
	if disk, inactive := d.deps.Tasks.InactiveDisk(id.Region, host, id.VMID, cfg); inactive {
		return &instance.BlockedError{Reason: v1alpha1.EventDiskNotDeleted, Message: fmt.Sprintf(
			"disk %s of VM %d cannot be deleted, because storage %s is inactive on host %s; the VM will be deleted when it is active, check with: pvesm status",
			disk.VolumeID, id.VMID, disk.Storage, host)}
	}
	return nil
}

// checkMark returns a BlockedError if the VM is ours, but its ownership mark was lost or
// cannot be read: such a VM is not destroyed.
func (d *Deleter) checkMark(id instance.Identity, host string, cfg proxmox.VMConfig) error {
	if id.HasLostMark(cfg) {
		guest, _ := d.deps.Inventory.View().Guest(id.Region, id.VMID)
		return &instance.BlockedError{Reason: v1alpha1.EventOwnershipMarkLost, Message: id.LostMarkMessage(host, cfg, guest)}
	}
	if id.HasNewerMark(cfg) {
		return &instance.BlockedError{Reason: v1alpha1.EventCreatedByNewerController, Message: fmt.Sprintf(
			"the ownership mark of VM %d on host %s cannot be read in full, so the VM is not destroyed: %s", id.VMID, host, instance.ErrNewerVersion)}
	}
	return nil
}

// destroy destroys a VM that is powered off.
func (d *Deleter) destroy(ctx context.Context, c proxmox.Client, id instance.Identity, verified *vm.Verified) (result, error) {
	status, err := d.deps.Tasks.Destroy(ctx, verified)
	switch {
	case errors.Is(err, vm.ErrBusy):
		return vmRemaining, &instance.BlockedError{Reason: v1alpha1.EventProxmoxBusy, Message: fmt.Sprintf(
			"VM %d waits for the deletion of other VMs on its storage of host %s, which deletes at most %d at a time", id.VMID, verified.Host, d.deps.Settings.CloneSlots)}
	case errors.Is(err, proxmox.ErrRunning):
		return vmRemaining, nil // it was started in between: the next call stops it again
	case err != nil:
		return resultOf(err, id, verified.Host)
	}
	log.FromContext(ctx).Info("deleted VM", "region", id.Region, "host", verified.Host, "vmid", id.VMID)
	return vmDestroyed, d.deleteLeakedDisks(ctx, c, id, status)
}

// shutdownTimeout returns how long the guest may take to shut down. It is 0 unless the
// Node is ready: a guest that never joined, hangs or has crashed would probably not
// answer, and keep its capacity for the whole time.
func (a *attempt) shutdownTimeout(ctx context.Context) time.Duration {
	node := &corev1.Node{}
	if a.claim.Status.NodeName == "" || a.deps.Kube.Get(ctx, client.ObjectKey{Name: a.claim.Status.NodeName}, node) != nil {
		return 0
	}
	if nodeutils.GetCondition(node, corev1.NodeReady).Status != corev1.ConditionTrue {
		return 0
	}
	return a.deps.Settings.ShutdownTimeout
}

// powerOff shuts the guest down within the given time, or stops it if that is 0. Proxmox
// stops a guest that takes longer. If powerOff takes longer than one Delete, the next one
// waits for it.
func (d *Deleter) powerOff(ctx context.Context, c proxmox.Client, id instance.Identity, verified *vm.Verified, shutdown time.Duration) error {
	task := d.deps.Launches.Get(id.ClaimUID).PowerOffTask
	if task == "" || task.Host() != verified.Host { // the VM was moved from a Host that failed
		var err error
		if task, err = verified.PowerOff(ctx, shutdown); err != nil {
			return err
		}
		d.deps.Launches.RecordPowerOff(id.ClaimUID, task)
	}
	_, err := d.deps.Tasks.Wait(ctx, c, task)
	if ctx.Err() == nil {
		d.deps.Launches.RecordPowerOff(id.ClaimUID, "")
	}
	return err
}
