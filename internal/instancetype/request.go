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

// Request returns the placement request for a Claim: every type that satisfies the
// Claim's requirements and resources, cheapest first, with the zones that the Claim
// allows. Placement decides where it fits. Zones that are excluded for other reasons are
// listed with the reason.
func (p *Provider) Request(nodeClass *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim, opts RequestOptions) (placement.Request, error) {
	pool := claim.Labels[karpv1.NodePoolLabelKey]
	l := p.currentList(nodeClass, pool)
	types, err := opts.applyOverlay(l.types)
	if err != nil {
		return placement.Request{}, err
	}
	request := newRequest(nodeClass, claim, pool, l.params)
	requirements := claimRequirements(claim)
	// Zones are checked one by one: types do not list those that the class cannot use.
	anywhere := maps.Clone(requirements)
	delete(anywhere, corev1.LabelTopologyRegion)
	delete(anywhere, corev1.LabelTopologyZone)
	// A Claim of a static NodePool lists no types, and must not get the exact size of another Node.
	listsTypes := requirements.Get(corev1.LabelInstanceTypeStable).Operator() == corev1.NodeSelectorOpIn
	var zoneSets [][]placement.Zone
	var allowed []*cloudprovider.InstanceType
	var sizes exactSizes
	for n, it := range types {
		v := l.variants[n]
		if v.unused || v.exact && !listsTypes || l.params.sizing.excludedReason(v.Type) != "" {
			continue
		}
		allowed = append(allowed, it)
		if !anywhere.IsCompatible(it.Requirements, scheduling.AllowUndefinedWellKnownLabels) ||
			!resources.Fits(claim.Spec.Resources.Requests, it.Allocatable()) {
			continue
		}
		if p.checkKubeletSize(l.params, v.Type) != nil {
			continue
		}
		exact, isExact := Type{}, false
		if !opts.FixedSize {
			exact, isExact = p.exactSize(l, v, it, requirements, claim.Spec.Resources.Requests, &sizes)
		}
		for price, zones := range p.allowedZones(l, v, it, requirements, opts, request.Excluded) {
			zones = deduplicate(&zoneSets, zones)
			request.Options = append(request.Options, placement.Option{InstanceType: v.Name, Need: p.newNeed(l.params, v.Type), Price: price, Zones: zones})
			if isExact {
				request.Options = append(request.Options, placement.Option{
					InstanceType: exact.Name, Need: p.newNeed(l.params, exact), Price: price * p.priceRatio(exact, v), Zones: zones,
				})
			}
		}
	}
	if len(request.Options) == 0 {
		request.NoOptionsReason = noOptionsReason(allowed, requirements, claim)
	}
	slices.SortFunc(request.Options, func(a, b placement.Option) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), cmp.Compare(a.Need.CPUs, b.Need.CPUs), cmp.Compare(a.Need.MemoryBytes, b.Need.MemoryBytes), cmp.Compare(a.InstanceType, b.InstanceType))
	})
	// Several types can have the same part that the Claim needs.
	request.Options = slices.CompactFunc(request.Options, func(a, b placement.Option) bool {
		return a.InstanceType == b.InstanceType && slices.Equal(a.Zones, b.Zones)
	})
	return request, nil
}

// claimRequirements returns the requirements of a Claim. Region, zone, type and capacity type among
// the labels that it was created with are requirements too: it keeps them, whatever VM it gets.
func claimRequirements(claim *karpv1.NodeClaim) scheduling.Requirements {
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	if claim.Status.ProviderID != "" {
		return requirements // core wrote the labels of its VM
	}
	for _, key := range []string{corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelInstanceTypeStable, karpv1.CapacityTypeLabelKey} {
		if value, ok := claim.Labels[key]; ok {
			requirements.Add(scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, value))
		}
	}
	return requirements
}

// newRequest returns a request without options.
func newRequest(nodeClass *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim, pool string, params offeringParams) placement.Request {
	request := placement.Request{
		ClaimUID:       string(claim.UID),
		NodePool:       pool,
		Strategy:       nodeClass.Spec.PlacementStrategy.ZoneBalance,
		Affinity:       nodeClass.Spec.PlacementStrategy.PoolAffinity,
		Storages:       make(map[placement.Zone]string, len(params.zones)),
		Disks:          map[placement.Zone]*placement.Disks{},
		Inherited:      map[placement.Zone][]string{},
		PinningSupport: map[placement.Zone]placement.PinningSupport{},
		Excluded:       map[placement.Zone]string{},
	}
	for _, z := range params.zones {
		request.Storages[z.Zone] = z.storage
		if z.disks != nil {
			request.Disks[z.Zone] = z.disks
		}
		if params.cpu.Bound {
			request.PinningSupport[z.Zone] = z.pinning
		}
		if z.devices != "" {
			request.Inherited[z.Zone] = z.inherited()
		}
	}
	return request
}

// deduplicate returns an earlier slice with the same zones if there is one: there are
// few different ones, and placement reads each of them once.
func deduplicate(known *[][]placement.Zone, zones []placement.Zone) []placement.Zone {
	for _, earlier := range *known {
		if slices.Equal(earlier, zones) {
			return earlier
		}
	}
	*known = append(*known, zones)
	return zones
}

// noOptionsReason returns why no instance type satisfies the Claim: a requirement that
// no type meets, or its resources.
func noOptionsReason(types []*cloudprovider.InstanceType, requirements scheduling.Requirements, claim *karpv1.NodeClaim) string {
	var keys []string
	for key, requirement := range requirements {
		alone := scheduling.NewRequirements(requirement)
		if !slices.ContainsFunc(types, func(it *cloudprovider.InstanceType) bool {
			return alone.IsCompatible(it.Requirements, scheduling.AllowUndefinedWellKnownLabels)
		}) {
			keys = append(keys, fmt.Sprintf("%s %s %v", key, requirement.Operator(), requirement.Values())+validValues(types, key))
		}
	}
	slices.Sort(keys)
	switch {
	case len(keys) > 0:
		return "no instance type has " + strings.Join(keys, ", nor ")
	case !slices.ContainsFunc(types, func(it *cloudprovider.InstanceType) bool {
		return resources.Fits(claim.Spec.Resources.Requests, it.Allocatable())
	}):
		return fmt.Sprintf("no instance type is large enough for %s; the largest are %s; increase spec.vmSize.max, or add larger ones with --instance-types-file",
			resources.String(claim.Spec.Resources.Requests), largestTypes(types))
	}
	return "no instance type satisfies all requirements together"
}

// maxValidValues is how many valid values a message names.
const maxValidValues = 20

// validValues returns the values of a label that the types have, as the end of a message;
// empty if they have none.
func validValues(types []*cloudprovider.InstanceType, key string) string {
	found := map[string]bool{}
	for _, it := range types {
		if requirement, ok := it.Requirements[key]; ok && requirement.Operator() == corev1.NodeSelectorOpIn {
			for _, value := range requirement.Values() {
				found[value] = true
			}
		}
	}
	if len(found) == 0 {
		return ""
	}
	values := slices.Sorted(maps.Keys(found))
	if more := len(values) - maxValidValues; more > 0 {
		values = append(values[:maxValidValues], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf(" (valid values: %s)", strings.Join(values, ", "))
}

// largestTypes returns the names of the types with the most CPUs and the most memory.
func largestTypes(types []*cloudprovider.InstanceType) string {
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

// RequestOptions modify a Request.
type RequestOptions struct {
	// Overlay applies NodeOverlays to the types, so the launched type matches what the
	// scheduler planned; nil for none.
	Overlay func([]*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error)
	// IgnoreUnavailable includes zones that are unavailable after a failure, or without
	// a free address.
	IgnoreUnavailable bool
	// FixedSize gives the Claim the size of an instance type, also if the NodeClass has
	// VMs of exact size.
	FixedSize bool
	// IgnoreBlocked includes zones that the NodeClass cannot use now.
	IgnoreBlocked bool
}

// AreNamed reports whether requirements allow or exclude certain instance types.
func AreNamed(requirements []karpv1.NodeSelectorRequirementWithMinValues) bool {
	return slices.ContainsFunc(requirements, func(r karpv1.NodeSelectorRequirementWithMinValues) bool {
		return IsTypeLabel(r.Key) && (r.Operator == corev1.NodeSelectorOpIn || r.Operator == corev1.NodeSelectorOpNotIn)
	})
}

// IsTypeLabel reports whether core treats a label as that of the instance type.
func IsTypeLabel(key string) bool {
	return cmp.Or(karpv1.NormalizedLabels[key], key) == corev1.LabelInstanceTypeStable
}

func (o RequestOptions) applyOverlay(types []*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error) {
	if o.Overlay == nil {
		return types, nil
	}
	overlaid, err := o.Overlay(types)
	if err == nil && len(overlaid) != len(types) {
		err = fmt.Errorf("applying node overlays returned %d instance types of %d", len(overlaid), len(types))
	}
	return overlaid, err
}

// allowedZones returns the zones where the Claim may get the type by price, and adds the
// reason for the others to excluded. A Claim gets the cheapest zone that fits: Karpenter
// would immediately replace a Node if a cheaper one is available.
func (p *Provider) allowedZones(
	l *list, v variant, it *cloudprovider.InstanceType, requirements scheduling.Requirements, opts RequestOptions, excluded map[placement.Zone]string,
) map[float64][]placement.Zone {
	zones := map[float64][]placement.Zone{}
	for n, z := range l.params.zones {
		if !v.isFor(z) || !requirements.IsCompatible(it.Offerings[n].Requirements, scheduling.AllowUndefinedWellKnownLabels) {
			continue
		}
		reason := ""
		if !opts.IgnoreBlocked {
			reason = z.blockedReason()
		}
		if reason == "" && !opts.IgnoreUnavailable {
			reason = cmp.Or(z.exhaustedReason, p.failureReason(OfferingSelector{z.Zone, it.Name, l.params.nodeClass}))
		}
		if reason != "" {
			excluded[z.Zone] = reason
			continue
		}
		price := it.Offerings[n].Price
		if z.asleep {
			price = max(price, v.price*z.priceFactor)
		}
		zones[price] = append(zones[price], z.Zone)
	}
	return zones
}

// newNeed returns the capacity that a VM of the type takes in any zone.
func (p *Provider) newNeed(params offeringParams, t Type) placement.Need {
	return placement.Need{
		CPUs: t.CPUs, MemoryBytes: t.MemoryBytes, DiskBytes: max(params.diskBytes, t.EphemeralBytes),
		Devices: p.deps.PCIResources.deviceNeeds(t), NodePool: params.nodePool, Affinity: params.Spec.PlacementStrategy.PoolAffinity, Layout: params.cpu,
		CloneQueue: p.cloneQueue, KeepReserve: params.Spec.PlacementStrategy.Reserve == v1alpha1.ReserveLargestHost,
	}
}

// newNeedIn returns the capacity that a VM of the type takes in a zone.
func (p *Provider) newNeedIn(params offeringParams, t Type, z zone) placement.Need {
	need := p.newNeed(params, t)
	need.Storage, need.Disks, need.Inherited, need.PinningSupport = z.storage, z.disks, z.inherited(), z.pinning
	return need
}
