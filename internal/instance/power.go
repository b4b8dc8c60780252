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

// Power restarts and starts VMs.
type Power struct {
	deps Deps
	vms  *Provider
}

// NewPower returns a Power.
func NewPower(deps Deps, vms *Provider) *Power { return &Power{deps, vms} }

// Reboot resets a Claim's VM, once per operation. It does not ask the guest: core
// reboots unhealthy Nodes, and a guest that hangs would not answer. A request that
// Proxmox accepted counts as done unless its task fails soon: repeating it would reset
// a guest that boots.
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
	client := p.deps.Clients[vm.Region]
	task, err := client.ResetVM(ctx, vm.Host, vm.VMID)
	if err != nil {
		return err
	}
	if err := Annotate(ctx, p.deps.Kube, claim, map[string]string{v1alpha1.AnnotationRebootOperation: operation}); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, p.deps.Settings.OperationTimeout)
	defer cancel()
	status, err := p.deps.Tasks.Wait(soon, client, task, DurationKey(vm.Region, vm.Host, ""))
	if err == nil || !status.Ended() {
		return nil
	}
	err = fmt.Errorf("resetting VM %d on host %s: %w", vm.VMID, vm.Host, err)
	return errors.Join(err, Annotate(ctx, p.deps.Kube, claim, map[string]string{v1alpha1.AnnotationRebootOperation: ""}))
}

// PowerOn starts a Claim's VM that is stopped, for example after its Host rebooted. It
// returns false if the VM needed no start.
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
	vm, err := p.vms.getOwned(ctx, id, claim)
	if err != nil {
		return false, err
	}
	client := p.deps.Clients[vm.Region]
	state, err := client.VMStatus(ctx, vm.Host, vm.VMID)
	if err != nil {
		return false, err
	}
	if state.Running || state.Lock != "" {
		// The Snapshot is outdated, or another task works on the VM.
		return false, nil
	}
	task, err := client.StartVM(ctx, vm.Host, vm.VMID)
	if err != nil {
		return false, err
	}
	_, err = p.deps.Tasks.Wait(ctx, client, task, DurationKey(vm.Region, vm.Host, ""))
	if errors.Is(err, context.DeadlineExceeded) {
		// The task continues; the next poll shows its result.
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("starting VM %d on host %s: %w", vm.VMID, vm.Host, err)
	}
	return true, nil
}
