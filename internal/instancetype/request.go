// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// Request asks placement for a Host for the Claim: every type that satisfies the
// Claim's requirements, of whichever operator, and carries its pods, the cheapest
// first, with the zones where the Claim may have it. Whether it fits there is for
// placement to decide on the View of that moment; zones that are out of the
// question for other reasons are left out and named with them.
func (p *Provider) Request(nodeClass *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim, opts RequestOptions) (placement.Request, error) {
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	l := p.current(nodeClass, pool)
	types, err := opts.overlaid(l.types)
	if err != nil {
		return placement.Request{}, err
	}
	request := placement.Request{
		ClaimUID:       string(claim.UID),
		NodePool:       pool,
		Strategy:       nodeClass.Spec.PlacementStrategy.ZoneBalance,
		Affinity:       nodeClass.Spec.PlacementStrategy.PoolAffinity,
		Storages:       make(map[placement.Zone]string, len(l.layout.zones)),
		Inherited:      map[placement.Zone][]string{},
		PinningSupport: map[placement.Zone]placement.PinningSupport{},
		Excluded:       map[placement.Zone]string{},
	}
	for _, z := range l.layout.zones {
		request.Storages[z.Zone] = z.storage
		if l.layout.cpu.Bound {
			request.PinningSupport[z.Zone] = z.means
		}
		if z.devices != "" {
			request.Inherited[z.Zone] = z.inherited()
		}
	}
	wanted := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	var shared [][]placement.Zone
	for n, it := range types {
		if !wanted.IsCompatible(it.Requirements, scheduling.AllowUndefinedWellKnownLabels) ||
			!resources.Fits(claim.Spec.Resources.Requests, it.Allocatable()) {
			continue
		}
		t := p.deps.Catalog.types[n]
		for price, zones := range p.allowed(l, it, wanted, opts, request.Excluded) {
			request.Options = append(request.Options, placement.Option{
				InstanceType: t.Name, Need: p.needOf(l.layout, t), Price: price, Zones: share(&shared, zones),
			})
		}
	}
	if len(request.Options) == 0 {
		request.NoOptionsReason = unmet(types, wanted, claim)
	}
	slices.SortFunc(request.Options, func(a, b placement.Option) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.Need.CPUs, b.Need.CPUs), cmp.Compare(a.InstanceType, b.InstanceType))
	})
	return request, nil
}

// share gives the slice that an earlier option has of the same zones: there are few
// different ones, and placement looks each of them up once.
func share(known *[][]placement.Zone, zones []placement.Zone) []placement.Zone {
	for _, earlier := range *known {
		if slices.Equal(earlier, zones) {
			return earlier
		}
	}
	*known = append(*known, zones)
	return zones
}

// unmet names what no instance type has: a requirement by itself, or the resources.
func unmet(types []*cloudprovider.InstanceType, wanted scheduling.Requirements, claim *karpv1.NodeClaim) string {
	var keys []string
	for key, requirement := range wanted {
		alone := scheduling.NewRequirements(requirement)
		if !slices.ContainsFunc(types, func(it *cloudprovider.InstanceType) bool {
			return alone.IsCompatible(it.Requirements, scheduling.AllowUndefinedWellKnownLabels)
		}) {
			keys = append(keys, fmt.Sprintf("%s %s %v", key, requirement.Operator(), requirement.Values()))
		}
	}
	slices.Sort(keys)
	switch {
	case len(keys) > 0:
		return ": no instance type has " + strings.Join(keys, ", nor ")
	case !slices.ContainsFunc(types, func(it *cloudprovider.InstanceType) bool {
		return resources.Fits(claim.Spec.Resources.Requests, it.Allocatable())
	}):
		return fmt.Sprintf(": no instance type is large enough for %s; those with the most are %s; larger ones come from --instance-types-file",
			resources.String(claim.Spec.Resources.Requests), largest(types))
	}
	return ": no instance type satisfies all of its requirements together"
}

// largest names the types with the most CPUs and with the most memory.
func largest(types []*cloudprovider.InstanceType) string {
	if len(types) == 0 {
		return "none"
	}
	with := func(name corev1.ResourceName) string {
		return slices.MaxFunc(types, func(a, b *cloudprovider.InstanceType) int {
			return a.Capacity.Name(name, resource.DecimalSI).Cmp(*b.Capacity.Name(name, resource.DecimalSI))
		}).Name
	}
	cpus, memory := with(corev1.ResourceCPU), with(corev1.ResourceMemory)
	if cpus == memory {
		return cpus
	}
	return cpus + " and " + memory
}

// RequestOptions change what a Request is made from.
type RequestOptions struct {
	// Overlay applies NodeOverlays to the types, so that what is launched is what
	// the scheduler planned with; nil changes nothing.
	Overlay func([]*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error)
	// IgnoreUnavailable takes in zones that are avoided for a while after a failure, or for
	// want of an address.
	IgnoreUnavailable bool
	// IgnoreBlocked takes in zones that the NodeClass cannot use as things are.
	IgnoreBlocked bool
}

func (o RequestOptions) overlaid(types []*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
	if o.Overlay == nil {
		return types, nil
	}
	overlaid, err := o.Overlay(types)
	if err == nil && len(overlaid) != len(types) {
		err = fmt.Errorf("applying node overlays gave %d instance types of %d", len(overlaid), len(types))
	}
	return overlaid, err
}

// allowed lists the zones where the Claim may have the type by their price, and
// notes for the others that it would accept what speaks against them. A Claim gets
// the cheapest zone that fits: Karpenter would replace a Node that could be had
// cheaper at once.
func (p *Provider) allowed(
	l *list, it *cloudprovider.InstanceType, wanted scheduling.Requirements, opts RequestOptions, excluded map[placement.Zone]string,
) map[float64][]placement.Zone {
	zones := map[float64][]placement.Zone{}
	for n, z := range l.layout.zones {
		if !wanted.IsCompatible(it.Offerings[n].Requirements, scheduling.AllowUndefinedWellKnownLabels) {
			continue
		}
		reason := ""
		if !opts.IgnoreBlocked {
			reason = z.blocked()
		}
		if reason == "" && !opts.IgnoreUnavailable {
			reason = cmp.Or(z.exhausted, p.unavailable.reason(Offerings{z.Zone, it.Name, l.layout.nodeClass}))
		}
		if reason != "" {
			excluded[z.Zone] = reason
			continue
		}
		price := it.Offerings[n].Price
		zones[price] = append(zones[price], z.Zone)
	}
	return zones
}

// Blocked tells why the NodeClass can have no VM in a zone as things are; empty when it
// can.
func (p *Provider) BlockedReason(nodeClass *v1alpha1.ProxmoxNodeClass, where placement.Zone) string {
	for _, z := range p.current(nodeClass, "").layout.zones {
		if z.Zone == where {
			return z.blocked()
		}
	}
	return "the Host is not known"
}

// Need is what a VM of the type takes in a zone of the NodeClass; false where the
// catalogue has no such type.
func (p *Provider) Need(nodeClass *v1alpha1.ProxmoxNodeClass, nodePool, instanceType string, where placement.Zone) (placement.Need, bool) {
	t, ok := p.Type(instanceType)
	if !ok {
		return placement.Need{}, false
	}
	layout := p.current(nodeClass, nodePool).layout
	layout.nodePool = nodePool
	for _, z := range layout.zones {
		if z.Zone == where {
			return p.needIn(layout, t, z), true
		}
	}
	return p.needOf(layout, t), true
}

// Labels are those that a Node of the type has in a zone of the NodeClass: what
// Create must answer, so that the Node matches the offering that it came from.
func (p *Provider) Labels(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string, where placement.Zone) map[string]string {
	t, ok := p.Type(instanceType)
	if !ok {
		return nil
	}
	z := zone{Zone: where}
	for _, known := range p.current(nodeClass, "").layout.zones {
		if known.Zone == where {
			z = known
		}
	}
	labels := z.labels()
	labels[corev1.LabelArchStable] = cmp.Or(z.arch, karpv1.ArchitectureAmd64)
	labels[corev1.LabelOSStable] = cmp.Or(z.os, string(corev1.Linux))
	maps.Copy(labels, t.labels())
	return labels
}

// Get gives Karpenter's object of a type in the NodeClass.
func (p *Provider) Get(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string) (*cloudprovider.InstanceType, bool) {
	n, ok := p.deps.Catalog.byName[instanceType]
	if !ok {
		return nil, false
	}
	return p.current(nodeClass, "").types[n], true
}
