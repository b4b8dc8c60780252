// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// powerOffOptions returns how the Claim's VM is powered off.
func (a *attempt) powerOffOptions(ctx context.Context) powerOffOptions {
	guest, _ := a.deps.Inventory.View().Guest(a.id.Region, a.id.VMID)
	return powerOffOptions{shutdown: a.shutdownTimeout(ctx), inHA: guest.HAState != "", nodePool: a.claim.Labels[karpv1.NodePoolLabelKey]}
}

// removeFromHA removes a VM from HA and its rules before it is stopped. For a VM in HA, a
// stop is only a request, and a destroy leaves the VM in rules.
func (d *Deleter) removeFromHA(ctx context.Context, id instance.Identity, options powerOffOptions, ha *v1alpha1.HighAvailability) error {
	err := d.deps.HA.Remove(ctx, instance.HAMember{Region: id.Region, VMID: id.VMID, NodePool: options.nodePool}, ha)
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden {
		// Another user added it. HA stops it when requested, and the destroy purges it.
		log.FromContext(ctx).V(1).Info("deleting VM in HA without the privilege to remove it from HA", "vmid", id.VMID, "region", id.Region, "cause", err.Error())
		return nil
	}
	return err
}

// leaveHA removes what an absent VM left in HA: a VM that was destroyed by hand stays in
// rules. They are those of the NodeClass, because the mark is gone with the VM. If another guest has
// the VMID, it is only removed from the rule of the NodePool.
func (a *attempt) leaveHA(ctx context.Context) error {
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := a.deps.Kube.Get(ctx, client.ObjectKey{Name: a.claim.Spec.NodeClassRef.Name}, class); err != nil {
		return client.IgnoreNotFound(err)
	}
	ha := class.Spec.HighAvailability
	if ha == nil || a.deps.Launches.Get(a.id.ClaimUID).IsFresh() {
		return nil
	}
	const doing = "removing a VM from HA"
	if _, taken := a.deps.Inventory.View().Guest(a.id.Region, a.id.VMID); taken {
		owned := &v1alpha1.HighAvailability{SeparateHosts: ha.SeparateHosts}
		return blocked(a.deps.HA.Leave(ctx, instance.NewHAMember(a.claim, a.id.Region, a.id.VMID), owned), doing)
	}
	return blocked(a.removeFromHA(ctx, a.id, powerOffOptions{nodePool: a.claim.Labels[karpv1.NodePoolLabelKey]}, ha), doing)
}
