// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func (a *attempt) ensureStarted(ctx context.Context) error {
	if !a.fresh {
		state, err := a.client.VMStatus(ctx, a.intent.Host, a.intent.VMID)
		if err != nil {
			return err
		}
		if state.Running {
			return nil
		}
	}
	if err := a.checkAddressConflict(); err != nil {
		return err
	}
	task, err := a.client.StartVM(ctx, a.intent.Host, a.intent.VMID)
	if err != nil {
		return err
	}
	_, err = a.deps.Tasks.Wait(ctx, a.client, task)
	if err == nil || errors.Is(err, proxmox.ErrRunning) {
		return nil
	}
	if proxmox.IsTransient(err) {
		return fmt.Errorf("starting VM %d on host %s: %w", a.intent.VMID, a.intent.Host, err)
	}
	return failf(v1alpha1.EventStartFailed, "starting VM %d on host %s: %s", a.intent.VMID, a.intent.Host, cmp.Or(proxmox.StartFailure(ctx, a.client, task), err.Error()))
}

// ensureHA adds the VM to HA. HA starts VMs as well, but only after a while, and does not
// return why a start failed. So the VM is added when it runs.
func (a *attempt) ensureHA(ctx context.Context) error {
	if a.intent.HA == nil {
		return nil
	}
	if err := a.deps.HA.Add(ctx, instance.NewHAMember(a.claim, a.intent.Region, a.intent.VMID), *a.intent.HA); err != nil {
		return err
	}
	return a.deps.ChangeVM(ctx, a.id, a.intent.Host, func(_ proxmox.VMConfig, mark *ownership.Mark) map[string]string {
		if mark.Applied != nil {
			mark.Applied.Done(ownership.PartHA)
		}
		return nil
	})
}

// checkAddressConflict returns an error if another guest has one of the VM's addresses
// since they were chosen, such as one of another Kubernetes cluster.
func (a *attempt) checkAddressConflict() error {
	view := a.deps.Inventory.View()
	for _, addr := range a.intent.Network.Addresses() {
		if owner, conflict := view.Addresses().Conflict(addr, a.intent.Region, a.intent.VMID); conflict {
			return failf(v1alpha1.EventAddressTaken, "address %s of VM %d was taken by %s", addr, a.intent.VMID, owner)
		}
	}
	return nil
}
