// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Power restarts and starts VMs.
type Power struct {
	deps Deps
	vms  *Provider
}

// NewPower returns a Power.
func NewPower(deps Deps, vms *Provider) *Power { return &Power{deps, vms} }

// Reboot resets a Claim's VM, at most once per operation. It does not ask the guest: core
// reboots unhealthy Nodes, and a guest that hangs would not answer. The operation is
// recorded before the request: repeating a reset would interrupt a guest that boots. It is
// retried only if Proxmox refused it or its task fails soon. If the process ends between
// record and request, the VM is not reset; core then replaces the Node, whose boot ID does
// not change.
func (p *Power) Reboot(ctx context.Context, claim *karpv1.NodeClaim, operation string) error {
	if claim.Annotations[v1alpha1.AnnotationRebootOperation] == operation {
		return nil
	}
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return fmt.Errorf("%w: %w", proxmox.ErrNotFound, err)
	}
	vm, err := p.vms.getOwned(ctx, id, claim)
	if err != nil {
		return err
	}
	// It fails if the Claim changed since it was read: the cached Claim may not show yet
	// that the operation was recorded.
	if err := p.recordReboot(ctx, claim, operation, client.MergeFromWithOptimisticLock{}); err != nil {
		return err
	}
	err = p.reset(ctx, vm)
	if err == nil || errors.Is(err, proxmox.ErrUnknownOutcome) {
		return err
	}
	return errors.Join(err, p.recordReboot(ctx, claim, ""))
}

// recordReboot records an operation and updates the Claim: core deletes a Claim whose reboot
// failed only in the version that it has.
func (p *Power) recordReboot(ctx context.Context, claim *karpv1.NodeClaim, operation string, options ...client.MergeFromOption) error {
	recorded := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&recorded.ObjectMeta, v1alpha1.AnnotationRebootOperation, operation)
	if err := p.deps.Kube.Patch(ctx, recorded, client.MergeFromWithOptions(claim, options...)); err != nil {
		return fmt.Errorf("recording the reboot of NodeClaim %s: %w", claim.Name, err)
	}
	recorded.DeepCopyInto(claim)
	return nil
}

// reset resets a VM. It returns nil if the task does not end soon.
func (p *Power) reset(ctx context.Context, vm VM) error {
	pve := p.deps.Clients[vm.Region]
	verified, err := VerifyVM(ctx, pve, vm.Identity, vm.Host, nil)
	if err != nil {
		return err
	}
	task, err := verified.Reset(ctx)
	if err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, p.deps.Settings.OperationTimeout)
	defer cancel()
	status, err := p.deps.Tasks.Wait(soon, pve, task)
	if err == nil || !status.Ended() {
		return nil
	}
	return fmt.Errorf("resetting VM %d on host %s: %w", vm.VMID, vm.Host, err)
}

// PowerOn starts a Claim's VM that is stopped, for example after its Host rebooted. It
// returns false if the VM needed no start, ErrVMLocked if it is locked, ErrHostStopping if its Host is about to shut
// down, and ErrStartInProgress if the start did not end in time.
func (p *Power) PowerOn(ctx context.Context, claim *karpv1.NodeClaim) (bool, error) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return false, err
	}
	ctx, release, ok := p.deps.Guard.AcquireLaunch(ctx, string(claim.UID))
	if !ok {
		return false, nil
	}
	defer release()
	started, err := p.start(ctx, id, claim)
	if errors.Is(ctx.Err(), context.Canceled) {
		// The Claim is being deleted, or this process ends: that is not a failed start.
		return false, nil
	}
	return started, err
}

func (p *Power) start(ctx context.Context, id v1alpha1.ProviderID, claim *karpv1.NodeClaim) (bool, error) {
	vm, err := p.vms.getOwned(ctx, id, claim)
	if err != nil {
		return false, err
	}
	client := p.deps.Clients[vm.Region]
	state, err := client.VMStatus(ctx, vm.Host, vm.VMID)
	if err != nil {
		return false, err
	}
	if state.Running {
		return false, nil // the Snapshot is outdated
	}
	if state.Lock != "" && state.Lock != LockSuspended {
		return false, fmt.Errorf("%w (%s)", ErrVMLocked, state.Lock)
	}
	// A Host that shuts down is online until its guests are stopped.
	stopping, err := client.RunningTasks(ctx, vm.Host, taskStopAll)
	if err != nil {
		return false, err
	}
	if len(stopping) > 0 {
		return false, fmt.Errorf("starting VM %d on host %s: %w", vm.VMID, vm.Host, ErrHostStopping)
	}
	verified, err := VerifyVM(ctx, client, vm.Identity, vm.Host, nil)
	if err != nil {
		return false, err
	}
	task, err := verified.Start(ctx)
	if err != nil {
		return false, err
	}
	_, err = p.deps.Tasks.Wait(ctx, client, task)
	if errors.Is(err, context.DeadlineExceeded) {
		err = ErrStartInProgress
	}
	if err != nil {
		return false, fmt.Errorf("starting VM %d on host %s: %w", vm.VMID, vm.Host, err)
	}
	return true, nil
}
