// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan decides which VM a Claim gets: its size, Host, VMID and addresses. The
// Planner reserves them in the ledger and keeps the decision, the Intent, in memory: core
// stores it with the result of Create, and nothing is sent to Proxmox before. The Planner
// sends no requests to Proxmox, except to read addresses the first time that an AddressPool
// is used.
package plan

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// Planner plans VMs.
type Planner struct {
	deps  instance.Deps
	types *instancetype.Provider
	// reader is not cached: the cache may not show yet what the last leader wrote.
	reader  client.Reader
	metrics instance.Metrics

	// restoring has one element while the Claims are listed.
	restoring chan struct{}
	// stored are the Claims that had a providerID when this process listed them, without the
	// initialized ones. nil until then.
	stored map[types.UID]*karpv1.NodeClaim
}

// New returns a Planner. The reader must not be cached.
func New(deps instance.Deps, types *instancetype.Provider, reader client.Reader, metrics instance.Metrics) *Planner {
	return &Planner{deps: deps, types: types, reader: reader, metrics: metrics, restoring: make(chan struct{}, 1)}
}

// NodeResources returns the resources of a Claim's Node with the instance type; nil if the type was
// removed from the catalog.
func (p *Planner) NodeResources(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, instanceType string) (*instance.NodeResources, error) {
	it, ok := p.types.Get(class, instanceType)
	if !ok {
		return nil, nil
	}
	overlaid, err := p.overlay(claim)([]*cloudprovider.InstanceType{it})
	if err != nil {
		return nil, err
	}
	return &instance.NodeResources{Capacity: overlaid[0].Capacity.DeepCopy(), Allocatable: overlaid[0].Allocatable().DeepCopy()}, nil
}

// overlay returns a function that applies the NodeOverlays of the Claim's NodePool, so
// the planned VM is the one that core scheduled for.
func (p *Planner) overlay(claim *karpv1.NodeClaim) func([]*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
	return func(its []*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
		pool, ok := claim.Labels[karpv1.NodePoolLabelKey]
		if !ok {
			return its, nil
		}
		overlaid, err := p.deps.Overlays.ApplyAll(pool, its)
		if cloudprovider.IsUnevaluatedNodePoolError(err) {
			return its, nil
		}
		if err != nil {
			return nil, fmt.Errorf("applying node overlays: %w", err)
		}
		return overlaid, nil
	}
}

// decideUnderLock chooses a VM from a View. It runs under the ledger's lock, so it must
// not send requests or wait.
type decideUnderLock func(inventory.View) (instance.Intent, error)

// decide returns the decision about the VM of a Claim.
func (p *Planner) decide(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, request placement.Request, read machineHolders, busy busyAddresses) decideUnderLock {
	return func(view inventory.View) (in instance.Intent, err error) {
		_, err = p.placeMachine(view, class, request, read, func(chosen placed) (err error) {
			in, err = p.newIntent(view, claim, class, chosen, busy)
			return err
		})
		return in, err
	}
}

// Plan decides which VM a Claim gets and on which Host, and reserves it. With fixedSize, the VM has
// the size of an instance type, also if the NodeClass has VMs of exact size. A Claim that this
// process planned keeps its plan. Plan returns an *instance.InsufficientCapacityError if no VM
// that the Claim allows fits.
func (p *Planner) Plan(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, fixedSize bool) (instance.Intent, error) {
	if in, ok := p.deps.Launches.Plan(string(claim.UID)); ok {
		return in, nil
	}
	if err := p.restore(ctx); err != nil {
		return instance.Intent{}, err
	}
	// First, because zones with AddressPools are offered only after the addresses were read.
	busy, err := p.readBusyAddresses(ctx, class)
	if err != nil {
		return instance.Intent{}, err
	}
	holders, err := p.readMachineHolders(ctx, claim, class)
	if err != nil {
		return instance.Intent{}, err
	}
	request, err := p.types.Request(class, claim, instancetype.RequestOptions{Overlay: p.overlay(claim), FixedSize: fixedSize})
	if err != nil {
		return instance.Intent{}, err
	}
	in, err := p.reserve(ctx, claim, p.deps.Inventory.Ledger().Reserve, p.decide(claim, class, request, holders, busy))
	p.countExhausted(class, err)
	return in, err
}

// CheckCapacity returns an *instance.InsufficientCapacityError with the reason of each
// Host if a Claim could not be launched now. The Claim is not one of core's, which name
// all instance types that fit, also if their names do not matter. It reserves nothing.
func (p *Planner) CheckCapacity(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	request, err := p.types.Request(class, claim, instancetype.RequestOptions{FixedSize: instancetype.AreNamed(claim.Spec.Requirements)})
	if err != nil {
		return err
	}
	if _, err := placement.Choose(p.deps.Inventory.View(), request); err != nil {
		return &instance.InsufficientCapacityError{Err: err}
	}
	return nil
}

// RestoreReservation adds the reservations of Claims to the ledger that are missing.
func (p *Planner) RestoreReservation(claims ...karpv1.NodeClaim) {
	var missing []inventory.Reservation
	known := p.deps.Inventory.View().Reservations
	for i := range claims {
		if _, ok := known[string(claims[i].UID)]; ok {
			continue
		}
		if in, ok := p.deps.IntentOf(&claims[i]); ok && !instance.LaunchedByOther(&claims[i]) {
			if size, known := p.types.Size(in.InstanceType); known && !in.Known {
				// The capacity of a Node is smaller than the memory of its VM.
				in.MemoryMiB = max(in.MemoryMiB, int(size.MemoryBytes>>20))
			}
			missing = append(missing, in.Reservation(&claims[i]))
		}
	}
	p.deps.Inventory.Ledger().Restore(missing...)
}

// Stored returns a Claim as core stored it with its providerID, if that was before this process
// listed the Claims; nil otherwise. The cache that core reads may show it later.
func (p *Planner) Stored(ctx context.Context, uid types.UID) (*karpv1.NodeClaim, error) {
	if err := p.restore(ctx); err != nil {
		return nil, err
	}
	return p.stored[uid], nil
}

// HasPlan reports whether this process planned a Claim's VM.
func (p *Planner) HasPlan(uid types.UID) bool {
	_, ok := p.deps.Launches.Plan(string(uid))
	return ok
}

// restore lists all Claims, once per process and before its first decision, and restores their
// reservations: capacity, cores and addresses that an earlier process assigned to a VM that does
// not exist yet are recorded only on its Claim.
func (p *Planner) restore(ctx context.Context) error {
	select {
	case p.restoring <- struct{}{}:
		defer func() { <-p.restoring }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for the reservations of other NodeClaims: %w", context.Cause(ctx))
	}
	if p.stored != nil {
		return nil
	}
	claims := &karpv1.NodeClaimList{}
	if err := p.reader.List(ctx, claims); err != nil {
		return fmt.Errorf("listing NodeClaims to restore their reservations: %w", err)
	}
	p.RestoreReservation(claims.Items...)
	p.stored = map[types.UID]*karpv1.NodeClaim{}
	for i := range claims.Items {
		if claim := &claims.Items[i]; claim.Status.ProviderID != "" && !claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
			p.stored[claim.UID] = claim
		}
	}
	return nil
}

// Release removes the reservation of a Claim that disappeared without a delete: core
// does not call Delete if the Claim never got its providerID.
func (p *Planner) Release(claimUID string) {
	p.deps.Inventory.Ledger().Release(claimUID)
	p.deps.Launches.Evict(claimUID)
}

// reserveFunc is Reserve or Replace of the ledger.
type reserveFunc func(claimUID string, decide inventory.DecideFunc) (inventory.Reservation, error)

// reserve reserves what was decided, and keeps it as the Claim's plan.
func (p *Planner) reserve(ctx context.Context, claim *karpv1.NodeClaim, reserve reserveFunc, decide decideUnderLock) (instance.Intent, error) {
	var in instance.Intent
	_, err := reserve(string(claim.UID), func(view inventory.View) (inventory.Reservation, error) {
		var err error
		if in, err = decide(view); err != nil {
			return inventory.Reservation{}, err
		}
		return in.Reservation(claim), nil
	})
	if err != nil {
		return instance.Intent{}, &instance.InsufficientCapacityError{Err: err}
	}
	if in.VMID == 0 {
		// Another call for this Claim decided since this one read the tracker.
		return instance.Intent{}, fmt.Errorf("planning the VM of NodeClaim %s: another plan of it is reserved", claim.Name)
	}
	p.deps.Launches.RecordPlanned(string(claim.UID), in)
	log.FromContext(ctx).V(1).Info("planned VM", "region", in.Region, "host", in.Host, "vmid", in.VMID, "instance-type", in.InstanceType, "parked", in.Parked)
	return in, nil
}

// rangeFullBackoff is how long a region without free VMIDs is not offered.
const rangeFullBackoff = time.Minute

// vmidOf returns the VMID of a Claim's VM: that of its providerID if it has one.
func (p *Planner) vmidOf(view inventory.View, region string, claim *karpv1.NodeClaim) (int, error) {
	if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil && id.Region == region {
		return id.VMID, nil
	}
	return p.pickVMID(view, region, claim)
}

// plannedAt returns the time from which a launch is measured, which survives a restart.
func (p *Planner) plannedAt(claim *karpv1.NodeClaim) time.Time {
	if claim.CreationTimestamp.IsZero() {
		return p.deps.Clock.Now().UTC()
	}
	return claim.CreationTimestamp.UTC()
}

// pickVMID chooses the VMID of a Claim's VM.
func (p *Planner) pickVMID(view inventory.View, region string, claim *karpv1.NodeClaim) (int, error) {
	vmid, err := placement.PickVMID(view, region, string(claim.UID), p.deps.Settings.VMIDs)
	if errors.Is(err, placement.ErrRangeFull) {
		for _, host := range view.Hosts() {
			if host.Region == region {
				p.types.MarkUnavailable(instancetype.OfferingSelector{Zone: placement.Zone{Region: host.Region, Host: host.Name}}, err.Error(), rangeFullBackoff)
			}
		}
	}
	return vmid, err
}
