// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// idleTime is how long the list of a NodeClass is kept that nobody asks for.
const idleTime = time.Hour

// Viewer gives the current View; an *inventory.Inventory is one.
type Viewer interface {
	View() inventory.View
}

// Deps are what a Provider works with. Only Inventory is needed.
type Deps struct {
	Inventory Viewer
	// Catalogue is the default one where it is empty.
	Catalogue Catalogue
	// Pricing is the default one where it is zero.
	Pricing Pricing
	// VMMemoryOverhead is the share of a VM's memory that the Node does not see,
	// see DefaultVMMemoryOverhead.
	VMMemoryOverhead float64
	Clock            clock.Clock
}

// Provider lists instance types. All methods are safe for concurrent use.
type Provider struct {
	deps        Deps
	prices      []float64 // in the catalogue's order
	unavailable *unavailable

	mu    sync.RWMutex
	lists map[string]*list // by name of the NodeClass
}

// list is what was last computed for a NodeClass, and what from.
type list struct {
	class     class
	inventory uint64
	marks     uint64

	layout    layout
	available [][]bool // by type, then by zone
	types     []*cloudprovider.InstanceType

	used atomic.Int64 // Unix seconds
}

// New makes a Provider.
func New(deps Deps) (*Provider, error) {
	if deps.Inventory == nil {
		return nil, errors.New("making the instance types, there is no inventory")
	}
	if deps.VMMemoryOverhead < 0 || deps.VMMemoryOverhead >= 1 {
		return nil, fmt.Errorf("making the instance types, found a VM memory overhead of %g, want a share from 0 to below 1, such as %g",
			deps.VMMemoryOverhead, DefaultVMMemoryOverhead)
	}
	if len(deps.Catalogue.types) == 0 {
		deps.Catalogue = DefaultCatalogue()
	}
	if deps.Pricing == (Pricing{}) {
		deps.Pricing = DefaultPricing()
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	p := &Provider{deps: deps, unavailable: newUnavailable(deps.Clock), lists: map[string]*list{}}
	for _, t := range deps.Catalogue.Types() {
		p.prices = append(p.prices, deps.Pricing.Price(t))
	}
	return p, nil
}

// List gives all types with all known zones of the NodeClass. As long as nothing
// changed it is the same slice; it and what it holds must not be changed.
func (p *Provider) List(nodeClass *v1alpha1.ProxmoxNodeClass) []*cloudprovider.InstanceType {
	return p.current(nodeClass).types
}

// current gives the NodeClass's list, computed anew if something changed.
func (p *Provider) current(nodeClass *v1alpha1.ProxmoxNodeClass) *list {
	view, marks, c := p.deps.Inventory.View(), p.unavailable.current(), classOf(nodeClass)
	p.mu.RLock()
	l := p.lists[nodeClass.Name]
	p.mu.RUnlock()
	if !l.isFrom(view, marks, c) {
		l = p.refresh(nodeClass.Name, view, marks, c)
	}
	l.used.Store(p.deps.Clock.Now().Unix())
	return l
}

func (l *list) isFrom(view inventory.View, marks uint64, c class) bool {
	return l != nil && l.inventory == view.Generation && l.marks == marks && l.class.equal(c)
}

// refresh computes a NodeClass's list; callers at the same time share it.
func (p *Provider) refresh(name string, view inventory.View, marks uint64, c class) *list {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.lists[name]
	if before.isFrom(view, marks, c) {
		return before
	}
	l := p.compute(before, view, c)
	l.class, l.inventory, l.marks = c.clone(), view.Generation, marks
	p.lists[name] = l

	idle := p.deps.Clock.Now().Add(-idleTime).Unix()
	for other, unused := range p.lists {
		if other != name && unused.used.Load() < idle {
			delete(p.lists, other)
		}
	}
	return l
}

// compute makes a list. Types that stay as they were keep their objects, and with
// them what Karpenter cached.
func (p *Provider) compute(before *list, view inventory.View, c class) *list {
	l := &list{layout: layoutOf(view, c)}
	keep := before != nil && before.layout.equal(l.layout)
	same := keep
	f := sync.OnceValue(func() frame { return newFrame(l.layout) })
	for n, t := range p.deps.Catalogue.Types() {
		available := p.availability(view, l.layout, t)
		if keep && slices.Equal(available, before.available[n]) {
			l.available = append(l.available, before.available[n])
			l.types = append(l.types, before.types[n])
			continue
		}
		same = false
		l.available = append(l.available, available)
		l.types = append(l.types, f().instanceType(t, p.prices[n], p.deps.VMMemoryOverhead, available))
	}
	if same {
		l.types = before.types
	}
	return l
}

// availability tells for each zone whether the type can be launched there.
func (p *Provider) availability(view inventory.View, l layout, t Type) []bool {
	available := make([]bool, len(l.zones))
	need := needOf(t, l.diskBytes)
	for n, z := range l.zones {
		need.Storage = z.storage
		_, marked := p.unavailable.find(Offerings{z.Zone, t.Name, l.nodeClass})
		available[n] = z.excluded == "" && z.exhausted == "" && z.template != 0 && z.ready && !marked && placement.Fits(view, z.Zone, need)
	}
	return available
}

func needOf(t Type, diskBytes int64) placement.Need {
	return placement.Need{CPUs: t.CPUs, MemoryBytes: t.MemoryBytes, DiskBytes: max(diskBytes, t.EphemeralBytes)}
}

// Type looks a type of the catalogue up.
func (p *Provider) Type(name string) (Type, bool) { return p.deps.Catalogue.Get(name) }

// Need is what a VM of the type takes in this NodeClass. Storage is empty where
// the NodeClass leaves it to the template; Request fills it in by zone.
func (p *Provider) Need(t Type, nodeClass *v1alpha1.ProxmoxNodeClass) placement.Need {
	c := classOf(nodeClass)
	need := needOf(t, c.diskBytes())
	need.Storage = c.storage
	return need
}

// MarkUnavailable takes offerings away for a time, because a launch there failed
// for that reason.
func (p *Provider) MarkUnavailable(what Offerings, reason string, ttl time.Duration) {
	p.unavailable.set(what, reason, ttl)
}

// Forgive ends the avoidance of what failed for one NodeClass: it was changed.
func (p *Provider) Forgive(nodeClass string) { p.unavailable.forgive(nodeClass) }

// Marked tells why offerings are avoided for a while; empty when they are not.
func (p *Provider) Marked(what Offerings) string {
	p.unavailable.current()
	return p.unavailable.reason(what)
}

// Reasons tells for each zone of the NodeClass where the type is not available why.
func (p *Provider) Reasons(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string) map[placement.Zone]string {
	t, ok := p.Type(instanceType)
	if !ok {
		return nil
	}
	l, view := p.current(nodeClass), p.deps.Inventory.View()
	reasons := map[placement.Zone]string{}
	need := needOf(t, l.layout.diskBytes)
	for _, z := range l.layout.zones {
		need.Storage = z.storage
		if reason := p.unavailable.reason(Offerings{z.Zone, t.Name, nodeClass.Name}); reason != "" {
			reasons[z.Zone] = reason
		} else if reason := cmp.Or(z.blocked(), z.exhausted); reason != "" {
			reasons[z.Zone] = reason
		} else if ok, reason := placement.Fit(view, z.Zone, need); !ok {
			reasons[z.Zone] = reason
		}
	}
	return reasons
}
