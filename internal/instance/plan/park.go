// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// Park plans a VM for which there is no capacity now: it chooses size and Host and
// reserves a VMID; the rest is decided when there is capacity. Claims of a static
// NodePool are parked instead of refused: core recreates a refused one without delay.
func (p *Planner) Park(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) (instance.Intent, error) {
	if err := p.restore(ctx); err != nil {
		return instance.Intent{}, err
	}
	// Hosts that are avoided after a failure are allowed: they become available again. If
	// the Claim has no other, so are those that the class cannot use.
	options := instancetype.RequestOptions{Overlay: p.overlay(claim), FixedSize: true, IgnoreUnavailable: true}
	request, err := p.types.Request(class, claim, options)
	if err == nil && len(request.Options) == 0 {
		options.IgnoreBlocked = true
		request, err = p.types.Request(class, claim, options)
	}
	if err != nil {
		return instance.Intent{}, err
	}
	holders, err := p.readMachineHolders(ctx, claim, class)
	if err != nil {
		return instance.Intent{}, err
	}
	request = p.parkingRequest(class, request, holders)
	option, _ := p.parkingOption(class, request)
	resources, err := p.NodeResources(claim, class, option.InstanceType)
	if err != nil {
		return instance.Intent{}, err
	}
	return p.reserve(ctx, claim, p.deps.Inventory.Ledger().Reserve, func(view inventory.View) (instance.Intent, error) {
		if len(option.Zones) == 0 {
			return p.parkUnplaceable(view, claim, class)
		}
		zone := parkingZone(view, request, option.Zones)
		in, err := p.reserveVMID(view, claim, class, zone)
		in.InstanceType, in.CapacityType = option.InstanceType, p.types.CapacityType(option.InstanceType)
		in.Cores, in.MemoryMiB, in.DiskBytes = option.Need.CPUs, int(option.Need.MemoryBytes>>20), option.Need.DiskBytes
		in.Storage, in.Resources = cmp.Or(option.Need.Storage, request.Storages[zone]), resources
		if template, err := instance.FindTemplate(view, class, zone); err == nil {
			in.TemplateHost, in.TemplateID, in.ImageID = template.Host, template.VMID, ownership.ImageID(template.VMID, *template.Config)
		}
		return in, err
	})
}

// parkingOption returns the cheapest size that a usable Host can get, with these Hosts. Without
// such a Host it returns the cheapest size with all Hosts, and false. A Host that the affinity
// forbids gets no VM, even if it has capacity.
func (p *Planner) parkingOption(class *v1alpha1.ProxmoxNodeClass, request placement.Request) (option placement.Option, usable bool) {
	view := p.deps.Inventory.View()
	for _, option := range request.Options {
		option.Zones = slices.DeleteFunc(slices.Clone(option.Zones), func(zone placement.Zone) bool {
			return p.unusableReason(class, option.InstanceType, zone) != "" || !placement.AllowsAffinity(view, zone, request.Affinity, request.NodePool)
		})
		if len(option.Zones) > 0 {
			return option, true
		}
	}
	if len(request.Options) == 0 {
		return placement.Option{}, false
	}
	return request.Options[0], false
}

// unusableReason returns why a Host accepts no VM of the class, whatever its capacity; empty if it
// accepts them.
func (p *Planner) unusableReason(class *v1alpha1.ProxmoxNodeClass, instanceType string, zone placement.Zone) string {
	if reason := p.types.UnavailableReason(class, instanceType, zone); reason != "" {
		return reason
	}
	if host, _ := p.deps.Inventory.View().Host(zone.Region, zone.Host); !host.IsAvailable(inventory.Launch) {
		return zone.Host + ": " + host.Obstacle(inventory.Launch).Message
	}
	return ""
}

// parkingZone returns the Host with the fewest VMs of the NodePool, or with the most if
// they are kept together: which Host gets capacity first is unknown.
func parkingZone(view inventory.View, request placement.Request, zones []placement.Zone) placement.Zone {
	together := request.Affinity == v1alpha1.PoolAffinitySameHost || request.Affinity == v1alpha1.PoolAffinitySameCell
	best := zones[0]
	for _, zone := range zones[1:] {
		vms, bestVMs := view.NodePoolVMs(zone.Region, zone.Host, request.NodePool), view.NodePoolVMs(best.Region, best.Host, request.NodePool)
		if vms != bestVMs && together == (vms > bestVMs) {
			best = zone
		}
	}
	return best
}

// parkUnplaceable parks a Claim whose requirements nothing meets, such as a misspelled
// Host. It reserves only a VMID: without a size, the Claim gets no labels that its
// NodePool excludes and no capacity that pods would wait for. It never becomes a VM, and
// fails after the timeout.
func (p *Planner) parkUnplaceable(view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) (instance.Intent, error) {
	for _, entry := range class.Status.SelectedZones {
		if zone, err := v1alpha1.ParseTemplateZone(entry); err == nil {
			return p.reserveVMID(view, claim, class, placement.Zone{Region: zone.Region, Host: zone.Host})
		}
	}
	return instance.Intent{}, fmt.Errorf("NodeClass %s has no host", class.Name)
}

// reserveVMID returns a parked intent that reserves a VMID and nothing else.
func (p *Planner) reserveVMID(view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, zone placement.Zone) (instance.Intent, error) {
	vmid, err := p.vmidOf(view, zone.Region, claim)
	return instance.Intent{
		Region: zone.Region, Host: zone.Host, VMID: vmid, ResourcePool: class.Spec.ResourcePool, Time: p.plannedAt(claim), ClassHash: class.Hash(), Parked: true,
	}, err
}

// Unpark plans a parked Claim once there is capacity on its Host. Size and zone do not
// change: core already has them. Without capacity it returns instance.ErrParked, and a
// *instance.LaunchError after the timeout, or if the Host is not usable and another one has
// capacity.
func (p *Planner) Unpark(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) (instance.Intent, error) {
	if err := p.restore(ctx); err != nil {
		return in, err
	}
	if _, known := p.types.Get(class, in.InstanceType); !known {
		return in, p.keepParked(in, cmp.Or(p.CheckCapacity(claim, class), errors.New("nothing met the NodeClaim's requirements when it was created")))
	}
	zone := in.Zone()
	holders, err := p.readMachineHolders(ctx, claim, class)
	if err != nil {
		return in, err
	}
	if reason := p.unusableReason(class, in.InstanceType, zone); reason != "" {
		return in, cmp.Or(p.findElsewhere(claim, class, holders), p.keepParked(in, errors.New(reason)))
	}
	// Without the lock and the reads of a plan: most of the time there is no capacity.
	request := p.parkedRequest(claim, class, in)
	request.Affinity = "" // the View has the Claim's own reservation
	if _, err := p.placeMachine(p.deps.Inventory.View(), class, request, holders, acceptAny); err != nil {
		if _, ok := errors.AsType[*noMachineError](err); ok {
			return in, cmp.Or(p.findElsewhere(claim, class, holders), p.keepParked(in, err))
		}
		return in, p.keepParked(in, err)
	}
	if guest, listed := p.deps.Inventory.View().Guest(in.Region, in.VMID); listed {
		return in, &instance.LaunchError{Reason: v1alpha1.EventVMIDTaken, Err: fmt.Errorf("guest %q took VMID %d", guest.Name, in.VMID)}
	}
	unparked, err := p.replan(ctx, claim, class, in, holders)
	if err == nil {
		return unparked, nil
	}
	if _, final := errors.AsType[*instance.LaunchError](err); final {
		return in, err
	}
	if _, insufficient := errors.AsType[*instance.InsufficientCapacityError](err); insufficient {
		return in, p.keepParked(in, err)
	}
	return in, err
}

// replan plans the VM of a Claim again, with its size on its Host, in place of what is reserved for it.
func (p *Planner) replan(
	ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent, holders machineHolders,
) (instance.Intent, error) {
	busy, err := p.readBusyAddresses(ctx, class)
	if err != nil {
		return in, err
	}
	decide := p.decide(claim, class, p.parkedRequest(claim, class, in), holders, busy)
	return p.reserve(ctx, claim, p.deps.Inventory.Ledger().Replace, func(view inventory.View) (instance.Intent, error) {
		planned, err := decide(view)
		planned.Resources = in.Resources
		return planned, err
	})
}

// parkedRequest requests the size and Host of a Claim that core stored.
func (p *Planner) parkedRequest(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) placement.Request {
	zone := in.Zone()
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	need, _ := p.types.Need(class, pool, in.InstanceType, zone)
	need.CPUs, need.MemoryBytes, need.DiskBytes = in.Cores, int64(in.MemoryMiB)<<20, in.DiskBytes
	// The storage may have been unknown when the Claim was parked.
	need.Storage = cmp.Or(in.Storage, need.Storage)
	if need.Disks != nil && len(need.Disks.Boot.Names) > 0 {
		need.Storage = "" // any of them
	}
	return placement.Request{
		ClaimUID: string(claim.UID), NodePool: pool, Affinity: class.Spec.PlacementStrategy.PoolAffinity, Inherited: map[placement.Zone][]string{zone: need.Inherited},
		PinningSupport: map[placement.Zone]placement.PinningSupport{zone: need.PinningSupport},
		Options:        []placement.Option{{InstanceType: in.InstanceType, Need: need, Zones: []placement.Zone{zone}}},
	}
}

// keepParked returns ErrParked until the timeout. Core recreates a Claim of a static
// NodePool without delay, so this wait is the only backoff.
func (p *Planner) keepParked(in instance.Intent, missing error) error {
	timeout := p.deps.Settings.StaticCapacityTimeout
	if p.deps.Clock.Since(in.Time) > timeout {
		return &instance.LaunchError{Reason: v1alpha1.EventInsufficientCapacity, Err: fmt.Errorf("no capacity within %s: %w", timeout, missing)}
	}
	return fmt.Errorf("%w: %w", missing, instance.ErrParked)
}
