// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"fmt"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// Resume plans the VM of a Claim again that another process planned: in is what core stored, and
// cloned the mark of the VM if it was cloned and not configured yet, otherwise nil. Host, size and VMID
// do not change. What else the Claim holds is preferred. The guest saw nothing of the first plan. If
// what is left does not fit any more, Resume returns an *instance.InsufficientCapacityError.
func (p *Planner) Resume(
	ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent, cloned *ownership.Mark,
) (instance.Intent, error) {
	// Before the first decision: what other Claims hold is not free.
	if err := p.restore(ctx); err != nil {
		return in, err
	}
	zone := in.Zone()
	need, known := p.types.Need(class, claim.Labels[karpv1.NodePoolLabelKey], in.InstanceType, zone)
	if in.Parked {
		return p.resumeParked(claim, class, in, need)
	}
	if !known {
		return in, invalid("instance type %q of NodeClaim %s is not in the catalog any more", in.InstanceType, claim.Name)
	}
	if in.Cores != need.CPUs {
		return in, invalid("NodeClaim %s has the capacity of %d CPUs, and its instance type %s has %d", claim.Name, in.Cores, in.InstanceType, need.CPUs)
	}
	in.MemoryMiB, in.DiskBytes = int(need.MemoryBytes>>20), need.DiskBytes
	holders, err := p.readMachineHolders(ctx, claim, class)
	if err != nil {
		return in, err
	}
	holders.preferred = in.Machine
	if cloned != nil {
		holders.required = cloned.Machine
	}
	p.deps.Inventory.Ledger().Restore(in.Reservation(claim))
	planned, err := p.replan(ctx, claim, class, in, holders)
	if cloned != nil && cloned.Source != nil {
		planned.TemplateHost, planned.TemplateID, planned.ImageID, planned.FullClone = cloned.Source.Host, cloned.Source.VMID, cloned.Source.Image, cloned.Source.Full
	}
	return planned, err
}

// resumeParked completes the plan of a Claim that waits for capacity, as far as its instance type is known.
func (p *Planner) resumeParked(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent, need placement.Need) (instance.Intent, error) {
	resources, err := p.NodeResources(claim, class, in.InstanceType)
	if err != nil {
		return in, err
	}
	in.Cores, in.MemoryMiB, in.DiskBytes, in.Resources = need.CPUs, int(need.MemoryBytes>>20), need.DiskBytes, resources
	return in, nil
}

// invalid returns the error of a Claim whose labels or status core did not write.
func invalid(format string, args ...any) error {
	return &instance.LaunchError{Reason: v1alpha1.EventInvalidLaunchIntent, Err: fmt.Errorf(format, args...)}
}
