// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// ErrParked says that the Claim waits for room; look again in a while.
var ErrParked = errors.New("waiting for room")

// Park plans a VM for which there is no room now: size and Host are chosen, a VMID
// is held, capacity and addresses are not. A static pool's Claims are parked instead of refused:
// core would make a refused one anew at once, over and over.
func (p *Provider) Park(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, overlay Overlay) (Intent, error) {
	// Hosts that are avoided after a failure count as well: they come back.
	request, err := p.Types.Request(class, claim, instancetype.RequestOptions{Overlay: overlay, IgnoreMarks: true})
	if err != nil {
		return Intent{}, err
	}
	return p.record(ctx, claim, func(view inventory.View) (Intent, error) {
		if len(request.Options) == 0 {
			_, err := placement.Choose(view, request)
			return Intent{}, err
		}
		// The cheapest size, on the Host that has the fewest of the pool, or the most
		// where they are kept together: which one gets room first cannot be known.
		option := request.Options[0]
		best := option.Zones[0]
		for _, zone := range option.Zones[1:] {
			here, there := view.VMs(zone.Region, zone.Host, request.NodePool), view.VMs(best.Region, best.Host, request.NodePool)
			if together := request.Affinity == v1alpha1.PoolAffinitySameHost || request.Affinity == v1alpha1.PoolAffinitySameCell; here != there && together == (here > there) {
				best = zone
			}
		}
		need := option.Need
		if need.Storage == "" {
			need.Storage = request.Storages[best]
		}
		in, err := p.intentFor(view, claim, class, placement.Placement{InstanceType: option.InstanceType, Price: option.Price, Zone: best, Need: need}, nil)
		in.Parked = true
		return in, err
	})
}

// parkedRequest asks for the one place that a parked Claim waits for.
func (p *Provider) parkedRequest(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in Intent, zone placement.Zone) placement.Request {
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	need, _ := p.Types.Need(class, pool, in.InstanceType, zone)
	need.CPUs, need.MemoryBytes, need.DiskBytes, need.Storage = in.Cores, int64(in.MemoryMiB)<<20, in.DiskBytes, in.Storage
	return placement.Request{
		ClaimUID: string(claim.UID), NodePool: pool, Inherited: map[placement.Zone][]string{zone: need.Inherited},
		Means:   map[placement.Zone]placement.Means{zone: need.Means},
		Options: []placement.Option{{InstanceType: in.InstanceType, Need: need, Zones: []placement.Zone{zone}}},
	}
}

// unpark gives a parked Claim its capacity once there is room on its Host: core
// knows its size and zone already, so neither can change.
func (p *Provider) unpark(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in Intent) (Intent, error) {
	zone := placement.Zone{Region: in.Region, Host: in.Host}
	if marked := p.Types.Marked(instancetype.Offerings{Zone: zone, InstanceType: in.InstanceType, NodeClass: class.Name}); marked != "" {
		return in, p.waitOn(in, errors.New(marked))
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
	p.Inventory.Release(string(claim.UID))
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
	p.Inventory.Restore(in.Reservation(claim))
	if _, final := errors.AsType[*LaunchError](err); final {
		return in, err
	}
	if _, noRoom := errors.AsType[*NoRoomError](err); noRoom {
		return in, p.waitOn(in, err)
	}
	return in, err
}

// waitOn lets a parked Claim wait for whatever it lacks, as long as there is patience.
// Core makes a Claim of a static pool anew as soon as it is given up: the wait is the
// only pause that there is.
func (p *Provider) waitOn(in Intent, lacking error) error {
	if p.Clock.Since(in.Time) > p.Settings.ParkPatience {
		return &LaunchError{Reason: ReasonNoRoom, err: fmt.Errorf("no room within %s: %w", p.Settings.ParkPatience, lacking)}
	}
	return fmt.Errorf("%w: %w", lacking, ErrParked)
}
