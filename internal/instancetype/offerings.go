// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// sharedRequirements holds the requirements that all types of a class share. With many
// Hosts they use most of the memory, so they are created once.
type sharedRequirements struct {
	params offeringParams
	// zones are the requirements of each zone's offerings by capacity type, in the order of params.zones.
	zones map[string][]scheduling.Requirements
	// byArch is what types share by their architecture; empty for those of all Hosts.
	byArch map[string]archRequirements
}

// archRequirements is what the types of an architecture share.
type archRequirements struct {
	common []*scheduling.Requirement
	// devices are those that the templates of all zones have.
	devices corev1.ResourceList
}

func newSharedRequirements(params offeringParams, variants []variant, devices Devices) sharedRequirements {
	f := sharedRequirements{params: params, zones: map[string][]scheduling.Requirements{}, byArch: map[string]archRequirements{}}
	hasUsable := slices.ContainsFunc(params.zones, func(z zone) bool { return z.blockedReason() == "" })
	for _, v := range variants {
		if _, ok := f.zones[v.capacityType()]; !ok {
			for _, z := range params.zones {
				f.zones[v.capacityType()] = append(f.zones[v.capacityType()], scheduling.NewLabelRequirements(z.labelsOf(v.Type).labels()))
			}
		}
		if _, ok := f.byArch[v.arch]; !ok {
			zones := slices.DeleteFunc(slices.Clone(params.zones), func(z zone) bool { return !z.isOf(v.arch) })
			f.byArch[v.arch] = archRequirements{common: commonRequirements(zones, hasUsable), devices: devices.sharedResources(zones)}
		}
	}
	return f
}

// commonRequirements returns the requirements of types that are for the zones. Core spreads
// pods over all zones and regions in them, so those in which the class cannot have a VM are
// not listed if the class has any others.
func commonRequirements(zones []zone, hasUsable bool) []*scheduling.Requirement {
	values := map[string][]string{}
	for _, z := range zones {
		for key, value := range z.labels() {
			if isTopology := key == corev1.LabelTopologyRegion || key == corev1.LabelTopologyZone; isTopology && hasUsable && z.blockedReason() != "" {
				continue
			}
			values[key] = append(values[key], value)
		}
	}
	return []*scheduling.Requirement{
		in(corev1.LabelArchStable, architectures(zones)...),
		in(corev1.LabelOSStable, orDefault(values[corev1.LabelOSStable], string(corev1.Linux))...),
		in(corev1.LabelTopologyRegion, values[corev1.LabelTopologyRegion]...),
		in(corev1.LabelTopologyZone, values[corev1.LabelTopologyZone]...),
		inOrAbsent(v1alpha1.LabelInstanceCPUType, values[v1alpha1.LabelInstanceCPUType]),
		inOrAbsent(v1alpha1.LabelInstanceImageID, values[v1alpha1.LabelInstanceImageID]),
		inOrAbsent(corev1.LabelWindowsBuild, nil),
	}
}

// labels returns the labels of a Node of the type that do not depend on the zone.
func (t Type) labels() map[string]string {
	return map[string]string{
		karpv1.CapacityTypeLabelKey:    t.capacityType(),
		corev1.LabelInstanceTypeStable: t.Name,
		v1alpha1.LabelInstanceFamily:   t.Family,
		v1alpha1.LabelInstanceCPU:      strconv.Itoa(t.CPUs),
		v1alpha1.LabelInstanceMemory:   strconv.FormatInt(t.MemoryBytes/mib, 10),
	}
}

func in(key string, values ...string) *scheduling.Requirement {
	return scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
}

func orDefault(values []string, value string) []string {
	if len(values) == 0 {
		return []string{value}
	}
	return values
}

func inOrAbsent(key string, values []string) *scheduling.Requirement {
	if len(values) == 0 {
		return scheduling.NewRequirement(key, corev1.NodeSelectorOpDoesNotExist)
	}
	return in(key, values...)
}

// newInstanceType returns Karpenter's object of a type. The unlisted labels of Nodes have offerings
// after those of the zones. They are not in the requirements of the type, in which core spreads pods
// over all values: no VM can be launched with them.
func (p *Provider) newInstanceType(f sharedRequirements, v variant, available []bool, unlisted []nodeLabels) *cloudprovider.InstanceType {
	t, shared, zones := v.Type, f.byArch[v.arch], f.zones[v.capacityType()]
	requirements := scheduling.NewRequirements(shared.common...)
	for key, value := range t.labels() {
		requirements.Add(in(key, value))
	}
	offerings := make([]cloudprovider.Offering, 0, len(zones)+len(unlisted))
	factors := priceFactors(f.params.zones, available)
	for n := range zones {
		offerings = append(offerings, cloudprovider.Offering{Requirements: zones[n], Price: v.price * factors[n], Available: available[n]})
	}
	for _, labels := range unlisted {
		factor := declared.DefaultPriceFactor
		if n, ok := f.params.index[labels.Zone]; ok {
			factor = factors[n]
		}
		offerings = append(offerings, cloudprovider.Offering{Requirements: scheduling.NewLabelRequirements(labels.labels()), Price: v.price * factor})
	}
	pointers := make(cloudprovider.Offerings, len(offerings))
	for n := range offerings {
		pointers[n] = &offerings[n]
	}
	capacity, overhead := p.resources(f.params, t)
	for name, quantity := range shared.devices {
		if stated, ok := capacity[name]; !ok || stated.Cmp(quantity) < 0 {
			capacity[name] = quantity
		}
	}
	return &cloudprovider.InstanceType{
		Name:                   t.Name,
		Requirements:           requirements,
		Offerings:              pointers,
		Capacity:               capacity,
		Overhead:               overhead,
		VolumeAttachmentLimits: p.deps.VolumeAttachmentLimits,
	}
}

// resources returns the capacity of a Node of the type, without devices of the template,
// and the part of it that is not available to pods.
func (p *Provider) resources(params offeringParams, t Type) (corev1.ResourceList, *cloudprovider.InstanceTypeOverhead) {
	kubelet, disk := params.kubelet.For(t.CPUs, t.MemoryBytes), cmp.Or(params.kubeletDiskBytes, max(params.diskBytes, t.EphemeralBytes))
	capacity := t.capacity(disk, kubelet.pods(t.Pods, t.CPUs), params.memory.overhead(t, p.estimate))
	maps.Copy(capacity, params.memory.hugepages(t))
	return capacity, kubelet.overhead(t.overhead(disk), capacity)
}
