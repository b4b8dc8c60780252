// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// listIdleTimeout is how long an unused list is cached.
const listIdleTimeout = time.Hour

// listKey identifies a list. The NodePool is empty if all NodePools of the class share
// the list.
type listKey struct{ nodeClass, nodePool string }

// list is a cached list of instance types with the state that it was computed from.
type list struct {
	inventory             uint64
	unavailableGeneration uint64
	nodesGeneration       uint64

	params    offeringParams
	variants  []variant
	available [][]bool // by variant, then by zone
	// unlisted are the labels of Nodes that no zone has, by variant.
	unlisted [][]nodeLabels
	types    []*cloudprovider.InstanceType

	used atomic.Int64 // Unix seconds
}

// currentList returns the NodeClass's list. It recomputes the list after a change.
func (p *Provider) currentList(nodeClass *v1alpha1.ProxmoxNodeClass, nodePool string) *list {
	key := listKey{nodeClass: nodeClass.Name}
	if affinity := nodeClass.Spec.PlacementStrategy.PoolAffinity; affinity != "" && affinity != v1alpha1.PoolAffinityNone {
		key.nodePool = nodePool
	}
	p.mu.RLock()
	l := p.lists[key]
	p.mu.RUnlock()
	if !p.isCurrent(l, p.deps.Inventory.View(), nodeClass) {
		l = p.refreshList(key, nodeClass)
	}
	l.used.Store(p.deps.Clock.Now().Unix())
	return l
}

// isCurrent reports whether the list was computed from the current state.
func (p *Provider) isCurrent(l *list, view inventory.View, nodeClass *v1alpha1.ProxmoxNodeClass) bool {
	return l != nil && l.inventory == view.Generation && l.unavailableGeneration == p.unavailable.Generation() && l.nodesGeneration == p.nodes.generation.Load() &&
		l.params.isFrom(nodeClass)
}

// refreshList computes a NodeClass's list; concurrent callers share it. The state is
// read under the lock, so lists only get newer.
func (p *Provider) refreshList(key listKey, nodeClass *v1alpha1.ProxmoxNodeClass) *list {
	p.mu.Lock()
	defer p.mu.Unlock()
	view, unavailableGeneration, nodesGeneration, now := p.deps.Inventory.View(), p.unavailable.Generation(), p.nodes.generation.Load(), p.deps.Clock.Now()
	before := p.lists[key]
	if p.isCurrent(before, view, nodeClass) {
		return before
	}
	l := p.computeList(key, before, view, p.newClassInput(nodeClass, before))
	l.inventory, l.unavailableGeneration, l.nodesGeneration = view.Generation, unavailableGeneration, nodesGeneration
	p.lists[key] = l

	idleSince := now.Add(-listIdleTimeout).Unix()
	for other, idle := range p.lists {
		if other != key && idle.used.Load() < idleSince {
			delete(p.lists, other)
		}
	}
	return l
}

// computeList computes a list. Unchanged types keep their objects, and with them
// Karpenter's caches.
func (p *Provider) computeList(key listKey, before *list, view inventory.View, c classInput) *list {
	l := &list{params: p.deps.CPULayouts.withPinningSupport(newOfferingParams(view, key, c), view)}
	keep, index := before != nil && before.params.equal(l.params), before.index()
	shared := sync.OnceValue(func() sharedRequirements { return newSharedRequirements(l.params, l.variants, p.deps.PCIResources) })
	l.variants = p.variants(l.params)
	unlistedLabels := p.unlistedLabels(l.params)
	same := keep && len(l.variants) == len(before.variants)
	for _, v := range l.variants {
		available := p.availability(view, l, v)
		n, listed := index[v.Name]
		unlisted := unlistedLabels(v.Type)
		l.unlisted = append(l.unlisted, unlisted)
		if keep && listed && before.hasOfferings(n, available, unlisted) {
			l.available = append(l.available, before.available[n])
			l.types = append(l.types, before.types[n])
			continue
		}
		same = false
		l.available = append(l.available, available)
		l.types = append(l.types, p.newInstanceType(shared(), v, available, unlisted))
	}
	if same {
		l.types = before.types
	}
	return l
}

// hasOfferings reports whether type n has the same offerings, for the same zones.
func (l *list) hasOfferings(n int, available []bool, unlisted []nodeLabels) bool {
	return slices.Equal(available, l.available[n]) && slices.Equal(unlisted, l.unlisted[n])
}

// isContained reports whether a type that contains the exact size is available in a zone. Then the
// size is not offered there: it is computed for each Claim.
func (l *list) isContained(v variant, zone int) bool {
	for n, available := range l.available {
		if available[zone] && !l.variants[n].exact && l.variants[n].contains(v) {
			return true
		}
	}
	return false
}

// index returns the position of each type by its name.
func (l *list) index() map[string]int {
	if l == nil {
		return nil
	}
	index := make(map[string]int, len(l.variants))
	for n, v := range l.variants {
		index[v.Name] = n
	}
	return index
}

// availability reports for each zone whether the type can be launched there. Exact sizes come
// after the types that contain them.
func (p *Provider) availability(view inventory.View, l *list, v variant) []bool {
	params := l.params
	available := make([]bool, len(params.zones))
	if v.unused || params.sizing.excludedReason(v.Type) != "" || p.checkKubeletSize(params, v.Type) != nil {
		return available
	}
	need := p.newNeed(params, v.Type)
	for n, z := range params.zones {
		if !v.isFor(z) || v.exact && l.isContained(v, n) {
			continue
		}
		need.Storage, need.Disks, need.Inherited, need.PinningSupport = z.storage, z.disks, z.inherited(), z.pinning
		available[n] = z.excludedReason == "" && z.exhaustedReason == "" && z.template != 0 && z.ready &&
			p.failureReason(OfferingSelector{z.Zone, v.Name, params.nodeClass}) == "" && placement.Fits(view, z.Zone, need)
	}
	return available
}
