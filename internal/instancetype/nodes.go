// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// nodesRefreshInterval is how often the Claims of existing Nodes are read again. Core checks the
// offerings of Nodes that are older than an hour.
const nodesRefreshInterval = 10 * time.Minute

// existingNodes holds what is listed only because existing Nodes have it: Karpenter replaces Nodes
// whose type or offering is not listed, and reads their price there.
type existingNodes struct {
	generation atomic.Uint64
	refreshed  atomic.Int64 // Unix nanoseconds

	mu sync.Mutex
	// sizes are the exact sizes, with the time when the size was planned last, or its last Node was
	// missing first; zero if a Node has it. They are available only where no larger type is: a Node
	// on a full Host can be replaced by one of the same size.
	sizes map[string]time.Time
	// labels are the different labels of Nodes. The map is replaced, never modified.
	labels map[nodeGroup][]nodeLabels
}

// nodeGroup is the Nodes of an instance type in a NodeClass.
type nodeGroup struct{ nodeClass, instanceType string }

// nodeLabels are the values of the labels that Nodes and offerings have. Empty values are unknown.
type nodeLabels struct {
	placement.Zone
	capacityType string
	// arch and os of VMs on the Host.
	arch, os string
	// cpuType and image of the template.
	cpuType, image string
}

// labels returns the labels without unknown values: an offering that excludes a label would drift
// the Nodes with it.
func (l nodeLabels) labels() map[string]string {
	labels := map[string]string{
		karpv1.CapacityTypeLabelKey: l.capacityType, corev1.LabelTopologyRegion: l.Region, corev1.LabelTopologyZone: l.Host,
		corev1.LabelArchStable: l.arch, corev1.LabelOSStable: l.os,
		v1alpha1.LabelInstanceCPUType: l.cpuType, v1alpha1.LabelInstanceImageID: l.image,
	}
	maps.DeleteFunc(labels, func(_, value string) bool { return value == "" })
	return labels
}

// readLabels returns the values of a Claim's labels.
func readLabels(labels map[string]string) nodeLabels {
	return nodeLabels{
		Zone:         placement.Zone{Region: labels[corev1.LabelTopologyRegion], Host: labels[corev1.LabelTopologyZone]},
		capacityType: labels[karpv1.CapacityTypeLabelKey],
		arch:         labels[corev1.LabelArchStable], os: labels[corev1.LabelOSStable],
		cpuType: labels[v1alpha1.LabelInstanceCPUType], image: labels[v1alpha1.LabelInstanceImageID],
	}
}

// matches reports whether core finds a Node with the other labels in an offering with these. Core
// does not compare labels that only one of them has.
func (l nodeLabels) matches(other nodeLabels) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return l.Zone == other.Zone && same(l.capacityType, other.capacityType) && same(l.arch, other.arch) && same(l.os, other.os) &&
		same(l.cpuType, other.cpuType) && same(l.image, other.image)
}

func (l nodeLabels) compare(other nodeLabels) int {
	return cmp.Or(cmp.Compare(l.Region, other.Region), cmp.Compare(l.Host, other.Host), cmp.Compare(l.capacityType, other.capacityType),
		cmp.Compare(l.arch, other.arch), cmp.Compare(l.os, other.os), cmp.Compare(l.cpuType, other.cpuType), cmp.Compare(l.image, other.image))
}

// RefreshNodes reads the types and labels of all Claims, at most every few minutes. Without it, Karpenter
// would replace Nodes of exact size, and Nodes with other labels than their Host has now: the template was
// changed since their launch, or another provider launched them.
func (p *Provider) RefreshNodes(read func() ([]karpv1.NodeClaim, error)) error {
	now := p.deps.Clock.Now()
	if last := p.nodes.refreshed.Load(); last != 0 && now.UnixNano()-last < int64(nodesRefreshInterval) {
		return nil
	}
	claims, err := read()
	if err != nil {
		return err
	}
	labels := groupLabels(claims)
	n := p.nodes
	n.mu.Lock()
	defer n.mu.Unlock()
	sizes := p.keepSizes(n.sizes, claims, now)
	changed := !maps.EqualFunc(sizes, n.sizes, func(time.Time, time.Time) bool { return true }) ||
		!maps.EqualFunc(labels, n.labels, slices.Equal[[]nodeLabels])
	n.sizes, n.labels = sizes, labels
	if changed {
		n.generation.Add(1)
	}
	n.refreshed.Store(now.UnixNano())
	return nil
}

// groupLabels returns the different labels of launched Claims in a fixed order.
func groupLabels(claims []karpv1.NodeClaim) map[nodeGroup][]nodeLabels {
	groups := map[nodeGroup][]nodeLabels{}
	for i := range claims {
		labels, ref := readLabels(claims[i].Labels), claims[i].Spec.NodeClassRef
		// Core finds the price of an offering by its zone and capacity type.
		if ref == nil || labels.Region == "" || labels.Host == "" || labels.capacityType == "" {
			continue
		}
		group := nodeGroup{ref.Name, claims[i].Labels[corev1.LabelInstanceTypeStable]}
		groups[group] = append(groups[group], labels)
	}
	for group, labels := range groups {
		slices.SortFunc(labels, nodeLabels.compare)
		groups[group] = slices.Compact(labels)
	}
	return groups
}

// unlistedLabels returns by instance type the labels of the NodeClass's Nodes that no zone has. They
// become offerings that are never available.
func (p *Provider) unlistedLabels(params offeringParams) func(Type) []nodeLabels {
	p.nodes.mu.Lock()
	groups := p.nodes.labels
	p.nodes.mu.Unlock()
	return func(t Type) (unlisted []nodeLabels) {
		for _, labels := range groups[nodeGroup{params.nodeClass, t.Name}] {
			if n, ok := params.index[labels.Zone]; !ok || !params.zones[n].labelsOf(t).matches(labels) {
				unlisted = append(unlisted, labels)
			}
		}
		return unlisted
	}
}
