// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// machineHolders are the Claims and Nodes that hold machines of a class. They are read
// before the ledger is locked.
type machineHolders struct {
	// by machine, with a description of the holder.
	holders map[string]string
	// released are machines whose holder is being deleted.
	released map[string]bool
	// unknown is why no machine is known to be free; empty if that is known.
	unknown string
	// preferred is the machine that the VM was planned with before, and required the one that it was
	// cloned with; empty if there is none.
	preferred, required string
}

// readMachineHolders reads which machines of a class other Claims and Nodes hold. A
// machine is held until its Claim is gone, not only its VM: before that, its Node still
// has the name. It reads nothing for a class without machines.
func (p *Planner) readMachineHolders(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) (machineHolders, error) {
	out := machineHolders{holders: map[string]string{}, released: map[string]bool{}}
	if len(class.Spec.Machines) == 0 {
		return out, nil
	}
	// Not cached: the cache may not show what an earlier process, or this one, wrote last.
	claims := &karpv1.NodeClaimList{}
	if err := p.reader.List(ctx, claims); err != nil {
		return out, fmt.Errorf("listing NodeClaims for their machines: %w", err)
	}
	for i := range claims.Items {
		if other := &claims.Items[i]; other.UID != claim.UID {
			out.add(p.deps, other, class)
		}
	}
	for _, machine := range class.Spec.Machines {
		if out.holders[machine.Name] != "" {
			continue
		}
		exists, err := p.nodeExists(ctx, machine.Name)
		if err != nil {
			return out, err
		}
		if exists {
			out.holders[machine.Name] = "Node " + machine.Name
		}
	}
	return out, nil
}

// add adds the machine of a Claim. If it is not known, its VM may be any machine of its class.
func (h *machineHolders) add(deps instance.Deps, other *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) {
	in, ok := deps.IntentOf(other)
	switch {
	case !ok:
	case in.Machine != "":
		h.holders[in.Machine] = "NodeClaim " + other.Name
		if !other.DeletionTimestamp.IsZero() {
			h.holders[in.Machine] += ", which is being deleted"
			h.released[in.Machine] = true
		}
	case !in.Known && !in.Parked && !instance.LaunchedByOther(other) && other.Spec.NodeClassRef.Name == class.Name:
		h.unknown = fmt.Sprintf("each may be held by VM %d on host %s of NodeClaim %s, whose configuration was not read yet", in.VMID, in.Host, other.Name)
	}
}

// nodeExists reports whether a Node exists. The cache shows a deleted Node for some time.
func (p *Planner) nodeExists(ctx context.Context, name string) (bool, error) {
	err := p.deps.Kube.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
	if err == nil {
		err = p.reader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading Node %s: %w", name, err)
	}
	return err == nil, nil
}

// placed is a placement, and the machine of the class that is placed, if it has any.
type placed struct {
	placement.Placement
	machine v1alpha1.Machine
}

// placeMachine chooses a Host like placement.Choose and, for a class with machines, the
// first free machine that fits and that accept returns no error for. It runs under the
// ledger's lock.
func (p *Planner) placeMachine(
	view inventory.View, class *v1alpha1.ProxmoxNodeClass, request placement.Request, read machineHolders, accept func(placed) error,
) (placed, error) {
	if len(class.Spec.Machines) == 0 {
		chosen, err := placement.Choose(view, request)
		if err == nil {
			err = accept(placed{Placement: chosen})
		}
		return placed{Placement: chosen}, err
	}
	if read.unknown != "" {
		return placed{}, &noMachineError{class: class.Name, reasons: []string{read.unknown}}
	}
	held := instance.HeldMachines(view, p.deps.KubeCluster)
	var reasons []string
	for _, machine := range read.candidates(class) {
		chosen, err := p.placeOn(view, machine, request, held[machine.Name], read.holders[machine.Name])
		if err == nil {
			err = accept(placed{chosen, machine})
		}
		if _, final := errors.AsType[*instance.LaunchError](err); err == nil || final {
			return placed{chosen, machine}, err
		}
		reasons = append(reasons, err.Error())
	}
	free := slices.ContainsFunc(class.Spec.Machines, func(m v1alpha1.Machine) bool {
		return (held[m.Name] == "" && read.holders[m.Name] == "") || read.released[m.Name]
	})
	return placed{}, &noMachineError{class: class.Name, reasons: reasons, allHeld: !free}
}

// candidates returns the machines that a VM may be, in the order of preference.
func (h machineHolders) candidates(class *v1alpha1.ProxmoxNodeClass) []v1alpha1.Machine {
	machines := slices.Clone(class.Spec.Machines)
	if h.required != "" {
		return slices.DeleteFunc(machines, func(m v1alpha1.Machine) bool { return m.Name != h.required })
	}
	slices.SortStableFunc(machines, func(a, b v1alpha1.Machine) int {
		return map[bool]int{true: -1}[a.Name == h.preferred] - map[bool]int{true: -1}[b.Name == h.preferred]
	})
	return machines
}

// acceptAny accepts every placement: only capacity and machines are checked.
func acceptAny(placed) error { return nil }

// placeOn chooses a Host for a machine; holders are the VM, Claim or Node that holds it.
func (p *Planner) placeOn(view inventory.View, machine v1alpha1.Machine, request placement.Request, holders ...string) (placement.Placement, error) {
	for _, holder := range slices.Backward(holders) {
		if holder != "" {
			return placement.Placement{}, fmt.Errorf("%s is held by %s", machine.Name, holder)
		}
	}
	request, err := machineRequest(machine, request)
	if err != nil {
		return placement.Placement{}, err
	}
	chosen, err := placement.Choose(view, request)
	if err != nil {
		return placement.Placement{}, fmt.Errorf("%s is free, but %w", machine.Name, err)
	}
	return chosen, p.checkUnread(view, machine, chosen.Zone)
}

// checkUnread returns an error if a VM on the Host of a machine was not read yet: it may
// hold the machine, for example while its Host returns after an outage.
func (p *Planner) checkUnread(view inventory.View, machine v1alpha1.Machine, zone placement.Zone) error {
	vmids := observed.VMIDRange{From: p.deps.Settings.VMIDs.From, To: p.deps.Settings.VMIDs.To}
	reserved := map[int]bool{}
	for _, r := range view.Reservations {
		reserved[r.VMID] = reserved[r.VMID] || r.Region == zone.Region
	}
	for vmid, guest := range view.Snapshots[zone.Region].Guests {
		if guest.Config == nil && guest.Host == zone.Host && vmids.Contains(vmid) && !reserved[vmid] {
			return fmt.Errorf("%s may be held by VM %d on host %s, whose configuration was not read yet", machine.Name, vmid, zone.Host)
		}
	}
	return nil
}

// machineRequest returns the request for a machine: only its Hosts are allowed.
func machineRequest(machine v1alpha1.Machine, request placement.Request) (placement.Request, error) {
	if machine.Zone == "" {
		return request, nil
	}
	regions := map[string]bool{}
	options := make([]placement.Option, 0, len(request.Options))
	for _, option := range request.Options {
		option.Zones = slices.DeleteFunc(slices.Clone(option.Zones), func(z placement.Zone) bool { return !machine.AllowsHost(z.Region, z.Host) })
		for _, z := range option.Zones {
			regions[z.Region] = true
		}
		if len(option.Zones) > 0 {
			options = append(options, option)
		}
	}
	if len(regions) > 1 {
		return request, fmt.Errorf("%s is on host %s, which exists in more than one region: set its region", machine.Name, machine.Zone)
	}
	request.Options = options
	request.Excluded = maps.Clone(request.Excluded)
	maps.DeleteFunc(request.Excluded, func(z placement.Zone, _ string) bool { return !machine.AllowsHost(z.Region, z.Host) })
	if len(options) == 0 {
		request.NoOptionsReason = fmt.Sprintf("host %s of machine %s is not usable now, or not allowed by the NodePool", machine.Zone, machine.Name)
	}
	return request, nil
}

// noMachineError explains for each machine why a Claim does not get it.
type noMachineError struct {
	class   string
	reasons []string
	// allHeld: each machine is held, and no holder is being deleted.
	allHeld bool
}

func (e *noMachineError) Error() string {
	text := fmt.Sprintf("ProxmoxNodeClass %s has no machine for this NodeClaim: %s", e.class, strings.Join(e.reasons, "; "))
	if e.allHeld {
		text += "; to replace a drifted Node of a static NodePool, set limits.nodes to replicas and enable the feature gate TerminateFirstDrift"
	}
	return text
}

// parkingRequest limits the request of a Claim that is parked to the Hosts of the machine
// that is probably free first: one whose Claim is being deleted, else any. It prefers machines
// with a Host that is usable.
func (p *Planner) parkingRequest(class *v1alpha1.ProxmoxNodeClass, request placement.Request, read machineHolders) placement.Request {
	machines := slices.Clone(class.Spec.Machines)
	slices.SortStableFunc(machines, func(a, b v1alpha1.Machine) int {
		return map[bool]int{true: -1}[read.released[a.Name]] - map[bool]int{true: -1}[read.released[b.Name]]
	})
	var unusable []placement.Request
	for _, machine := range machines {
		limited, err := machineRequest(machine, request)
		if err != nil || len(limited.Options) == 0 {
			continue
		}
		if _, usable := p.parkingOption(class, limited); usable {
			return limited
		}
		unusable = append(unusable, limited)
	}
	return append(unusable, request)[0]
}

// findElsewhere returns a LaunchError if a parked Claim could be launched on another Host: core
// recreates the Claim, which then gets that Host, and a machine there if the class has any.
func (p *Planner) findElsewhere(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, read machineHolders) error {
	request, err := p.types.Request(class, claim, instancetype.RequestOptions{FixedSize: true})
	if err != nil {
		return err
	}
	chosen, err := p.placeMachine(p.deps.Inventory.View(), class, request, read, acceptAny)
	if err != nil {
		return nil //nolint:nilerr // no other Host either
	}
	found := fmt.Sprintf("host %s has capacity", chosen.Zone.Host)
	if chosen.machine.Name != "" {
		found = fmt.Sprintf("machine %s on host %s is free", chosen.machine.Name, chosen.Zone.Host)
	}
	return &instance.LaunchError{
		Reason: v1alpha1.EventInsufficientCapacity, Err: fmt.Errorf("%s, and the NodeClaim waited for another host; it is recreated", found),
	}
}
