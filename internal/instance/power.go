// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Reboot restarts a Claim's VM, once per operation. It presses the reset button:
// core reboots Nodes that are sick, and a guest that hangs would let a polite
// request run into its time-out. What Proxmox has accepted counts as done, unless it
// turns out soon that it failed: to ask again would reset a guest that boots.
func (p *Provider) Reboot(ctx context.Context, claim *karpv1.NodeClaim, operation string) error {
	if claim.Annotations[v1alpha1.AnnotationRebootOperation] == operation {
		return nil
	}
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return fmt.Errorf("%w: %w", proxmox.ErrNotFound, err)
	}
	vm, err := p.ownedBy(ctx, id, claim)
	if err != nil {
		return err
	}
	task, err := p.Clients[vm.Region].ResetVM(ctx, vm.Host, vm.VMID)
	if err != nil {
		return err
	}
	if err := annotate(ctx, p.Kube, claim, map[string]string{v1alpha1.AnnotationRebootOperation: operation}); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, p.Settings.OperationTimeout)
	defer cancel()
	status, err := p.wait(soon, p.Clients[vm.Region], task, durationKey(vm.Region, vm.Host, ""))
	if err == nil || !status.Ended() {
		return nil
	}
	err = fmt.Errorf("resetting VM %d on host %s, %w", vm.VMID, vm.Host, err)
	return errors.Join(err, annotate(ctx, p.Kube, claim, map[string]string{v1alpha1.AnnotationRebootOperation: ""}))
}

// PowerOn starts a Claim's VM that was found stopped, as a Host's reboot leaves
// it. False when it turned out to need no start.
func (p *Provider) PowerOn(ctx context.Context, claim *karpv1.NodeClaim) (bool, error) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return false, err
	}
	ctx, release, ok := p.guard.launch(ctx, string(claim.UID))
	if !ok {
		return false, nil
	}
	defer release()
	vm, err := p.ownedBy(ctx, id, claim)
	if err != nil {
		return false, err
	}
	client := p.Clients[vm.Region]
	state, err := client.VMStatus(ctx, vm.Host, vm.VMID)
	if err != nil {
		return false, err
	}
	if state.Running || state.Lock != "" {
		// The poll lags behind, or somebody is at work on it.
		return false, nil
	}
	task, err := client.StartVM(ctx, vm.Host, vm.VMID)
	if err != nil {
		return false, err
	}
	_, err = p.wait(ctx, client, task, durationKey(vm.Region, vm.Host, ""))
	if errors.Is(err, context.DeadlineExceeded) {
		// Proxmox is at it; the next look tells how it ended.
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("starting VM %d on host %s, %w", vm.VMID, vm.Host, err)
	}
	return true, nil
}

// ownedBy finds the VM and makes sure that it is this Claim's.
func (p *Provider) ownedBy(ctx context.Context, id v1alpha1.ProviderID, claim *karpv1.NodeClaim) (VM, error) {
	vm, err := p.Get(ctx, id)
	if err != nil {
		return VM{}, err
	}
	if vm.ClaimUID != string(claim.UID) {
		return VM{}, fmt.Errorf("VM %d in region %s belongs to another claim: %w", id.VMID, id.Region, proxmox.ErrNotFound)
	}
	if vm.newer {
		return VM{}, fmt.Errorf("reading the ownership mark of VM %d on host %s, %w", id.VMID, vm.Host, ErrNewerVersion)
	}
	return vm, nil
}
