// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// frame holds the requirements that all types of a class share, made once: with
// many Hosts they are most of the memory.
type frame struct {
	layout layout
	// common to every type.
	common []*scheduling.Requirement
	// zones has the requirements of each zone's offerings, in the layout's order.
	zones []scheduling.Requirements
	// devices that the templates of all zones pass on.
	devices corev1.ResourceList
}

func newFrame(l layout, devices Devices) frame {
	f := frame{layout: l, zones: make([]scheduling.Requirements, len(l.zones)), devices: devices.shared(l.zones)}
	values := map[string][]string{}
	for n, z := range l.zones {
		f.zones[n] = scheduling.NewRequirements()
		for key, value := range z.labels() {
			f.zones[n].Add(in(key, value))
			values[key] = append(values[key], value)
		}
	}
	f.common = []*scheduling.Requirement{
		in(corev1.LabelArchStable, orDefault(values[corev1.LabelArchStable], karpv1.ArchitectureAmd64)...),
		in(corev1.LabelOSStable, orDefault(values[corev1.LabelOSStable], string(corev1.Linux))...),
		in(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand),
		in(corev1.LabelTopologyRegion, values[corev1.LabelTopologyRegion]...),
		in(corev1.LabelTopologyZone, values[corev1.LabelTopologyZone]...),
		// In without a value would be the same, and less plain.
		inOrAbsent(v1alpha1.LabelInstanceCPUType, values[v1alpha1.LabelInstanceCPUType]),
		inOrAbsent(v1alpha1.LabelInstanceImageID, values[v1alpha1.LabelInstanceImageID]),
		inOrAbsent(corev1.LabelWindowsBuild, nil),
	}
	return f
}

// labels of a Node in the zone that other zones may not share. What is not known
// is left out rather than denied: a label that an offering denies would drift the
// Nodes that carry it.
func (z zone) labels() map[string]string {
	labels := map[string]string{
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
		corev1.LabelTopologyRegion:  z.Region,
		corev1.LabelTopologyZone:    z.Host,
	}
	if z.arch != "" {
		labels[corev1.LabelArchStable] = z.arch
	}
	if z.os != "" {
		labels[corev1.LabelOSStable] = z.os
	}
	if z.cpuType != "" {
		labels[v1alpha1.LabelInstanceCPUType] = z.cpuType
	}
	if z.image != "" {
		labels[v1alpha1.LabelInstanceImageID] = z.image
	}
	return labels
}

// labels of a Node of the type, wherever it is.
func (t Type) labels() map[string]string {
	return map[string]string{
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

// instanceType makes Karpenter's object of a type in this class.
func (p *Provider) instanceType(f frame, t Type, price float64, available []bool) *cloudprovider.InstanceType {
	requirements := scheduling.NewRequirements(f.common...)
	for key, value := range t.labels() {
		requirements.Add(in(key, value))
	}
	pods := t.Pods
	if f.layout.maxPods > 0 {
		pods = f.layout.maxPods
	}
	disk := max(f.layout.diskBytes, t.EphemeralBytes)
	offerings := make([]cloudprovider.Offering, len(f.zones))
	pointers := make(cloudprovider.Offerings, len(f.zones))
	for n := range f.zones {
		offerings[n] = cloudprovider.Offering{Requirements: f.zones[n], Price: price * f.layout.zones[n].price, Available: available[n]}
		pointers[n] = &offerings[n]
	}
	capacity := t.capacity(disk, pods, p.deps.VMMemoryOverhead)
	for name, quantity := range f.devices {
		if stated, ok := capacity[name]; !ok || stated.Cmp(quantity) < 0 {
			capacity[name] = quantity
		}
	}
	return &cloudprovider.InstanceType{
		Name:                   t.Name,
		Requirements:           requirements,
		Offerings:              pointers,
		Capacity:               capacity,
		Overhead:               t.overhead(disk),
		VolumeAttachmentLimits: p.deps.VolumeLimits,
	}
}
