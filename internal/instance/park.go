// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// ErrParked says that the Claim waits for room; look again in a while.
var ErrParked = errors.New("waiting for room")

// Park plans a VM for which there is no room now: size and Host are chosen, a VMID
// is held; the rest is decided when there is room. A static pool's Claims are parked
// instead of refused, whatever the reason: core would make a refused one anew at once,
// over and over.
func (p *Provider) Park(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, overlay Overlay) (Intent, error) {
	// Hosts that are avoided after a failure count as well: they come back. So do those
	// that the class cannot use, where the Claim may have no other.
	request, err := p.Types.Request(class, claim, instancetype.RequestOptions{Overlay: overlay, IgnoreUnavailable: true})
	if err == nil && len(request.Options) == 0 {
		request, err = p.Types.Request(class, claim, instancetype.RequestOptions{Overlay: overlay, IgnoreUnavailable: true, IgnoreBlocked: true})
	}
	if err != nil {
		return Intent{}, err
	}
	return p.record(ctx, claim, func(view inventory.View) (Intent, error) {
		if len(request.Options) == 0 {
			return p.parkNowhere(view, claim, class)
		}
		// The cheapest size, on the Host that has the fewest of the pool, or the most
		// where they are kept together: which one gets room first cannot be known.
		option := request.Options[0]
		best := option.Zones[0]
		for _, zone := range option.Zones[1:] {
			here, there := view.NodePoolVMs(zone.Region, zone.Host, request.NodePool), view.NodePoolVMs(best.Region, best.Host, request.NodePool)
			if together := request.Affinity == v1alpha1.PoolAffinitySameHost || request.Affinity == v1alpha1.PoolAffinitySameCell; here != there && together == (here > there) {
				best = zone
			}
		}
		in, err := p.parkedAt(view, claim, class, best)
		in.InstanceType, in.CapacityType = option.InstanceType, karpv1.CapacityTypeOnDemand
		in.Cores, in.MemoryMiB, in.DiskBytes = option.Need.CPUs, int(option.Need.MemoryBytes>>20), option.Need.DiskBytes
		in.Storage = cmp.Or(option.Need.Storage, request.Storages[best])
		if template, err := findTemplate(view, class, best); err == nil {
			in.TemplateHost, in.TemplateID, in.ImageID = template.Host, template.VMID, ownership.ImageID(template.VMID, *template.Config)
		}
		return in, err
	})
}

// parkNowhere parks a Claim that asks for what there is not, such as a Host that is
// misspelt. It is a VMID and nothing else: no size, no label that its pool would deny,
// no capacity that pods would wait for. It never becomes a VM, and is given up in time.
func (p *Provider) parkNowhere(view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) (Intent, error) {
	for _, entry := range class.Status.SelectedZones {
		if zone, err := v1alpha1.ParseTemplateZone(entry); err == nil {
			return p.parkedAt(view, claim, class, placement.Zone{Region: zone.Region, Host: zone.Host})
		}
	}
	return Intent{}, fmt.Errorf("nodeclass %s has no host", class.Name)
}

// parkedAt holds a VMID at a place.
func (p *Provider) parkedAt(view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, zone placement.Zone) (Intent, error) {
	vmid, err := p.pickVMID(view, zone.Region, claim)
	return Intent{
		Region: zone.Region, Host: zone.Host, VMID: vmid, Pool: class.Spec.ResourcePool, Time: p.Clock.Now().UTC(), Parked: true,
	}, err
}

// parkedRequest asks for the one place that a parked Claim waits for.
func (p *Provider) parkedRequest(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in Intent, zone placement.Zone) placement.Request {
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	need, _ := p.Types.Need(class, pool, in.InstanceType, zone)
	need.CPUs, need.MemoryBytes, need.DiskBytes = in.Cores, int64(in.MemoryMiB)<<20, in.DiskBytes
	// Where it was not known yet, the class knows it by now.
	need.Storage = cmp.Or(in.Storage, need.Storage)
	return placement.Request{
		ClaimUID: string(claim.UID), NodePool: pool, Inherited: map[placement.Zone][]string{zone: need.Inherited},
		PinningSupport: map[placement.Zone]placement.PinningSupport{zone: need.PinningSupport},
		Options:        []placement.Option{{InstanceType: in.InstanceType, Need: need, Zones: []placement.Zone{zone}}},
	}
}

// unpark gives a parked Claim its capacity once there is room on its Host: core
// knows its size and zone already, so neither can change.
func (p *Provider) unpark(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in Intent) (Intent, error) {
	if in.IsUnplaceable() {
		return in, p.waitOn(in, cmp.Or(p.CheckCapacity(claim, class), errors.New("nothing met the claim's requirements when it was made")))
	}
	zone := placement.Zone{Region: in.Region, Host: in.Host}
	if reason := p.Types.UnavailableReason(class, in.InstanceType, zone); reason != "" {
		return in, p.waitOn(in, errors.New(reason))
	}
	request := p.parkedRequest(claim, class, in, zone)
	if _, err := placement.Choose(p.Inventory.View(), request); err != nil {
		return in, p.waitOn(in, err)
	}
	// The VMID stays the Claim's: between the two lines somebody else could get the
	// room, never the VMID, which is derived from this Claim.
	known, err := p.addressing(ctx, class)
	if err != nil {
		return in, err
	}
	p.Inventory.Ledger().Release(string(claim.UID))
	// Only now does the Claim's own VMID not count for the rule about its pool's Hosts.
	request.Affinity = class.Spec.PlacementStrategy.PoolAffinity
	unparked, err := p.record(ctx, claim, func(view inventory.View) (Intent, error) {
		chosen, err := placement.Choose(view, request)
		if err != nil {
			return Intent{}, err
		}
		fresh, err := p.intentFor(view, claim, class, chosen, known)
		if err == nil && fresh.VMID != in.VMID {
			err = &LaunchError{Reason: ReasonVMIDTaken, err: fmt.Errorf("VMID %d was taken meanwhile", in.VMID)}
		}
		return fresh, err
	})
	if err == nil {
		return unparked, nil
	}
	p.Inventory.Ledger().Restore(in.Reservation(claim))
	if _, final := errors.AsType[*LaunchError](err); final {
		return in, err
	}
	if _, noRoom := errors.AsType[*InsufficientCapacityError](err); noRoom {
		return in, p.waitOn(in, err)
	}
	return in, err
}

// waitOn lets a parked Claim wait for whatever it lacks, as long as there is patience.
// Core makes a Claim of a static pool anew as soon as it is given up: the wait is the
// only pause that there is.
func (p *Provider) waitOn(in Intent, lacking error) error {
	if p.Clock.Since(in.Time) > p.Settings.StaticCapacityTimeout {
		return &LaunchError{Reason: ReasonInsufficientCapacity, err: fmt.Errorf("no room within %s: %w", p.Settings.StaticCapacityTimeout, lacking)}
	}
	return fmt.Errorf("%w: %w", lacking, ErrParked)
}
