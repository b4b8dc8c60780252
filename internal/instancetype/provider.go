// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	Catalog Catalog
	// Pricing is the default one where it is zero.
	Pricing Pricing
	// Devices say which PCI mappings stand behind extended resources.
	Devices Devices
	// VolumeLimits say by CSI driver how many volumes a Node takes, for the time
	// until the driver says so itself.
	VolumeLimits map[string]int
	// CPULayouts say how VMs lie on their Hosts.
	CPULayouts CPULayouts
	// VMMemoryOverhead is the fraction of a VM's memory that firmware and kernel use, so
	// the Node does not report it. Karpenter rejects a Node with less than 90 % of its
	// claim's capacity.
	VMMemoryOverhead float64
	Clock            clock.Clock
	// Registerer takes the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Provider lists instance types. All methods are safe for concurrent use.
type Provider struct {
	deps        Deps
	prices      []float64 // in the catalogue's order
	unavailable *unavailable

	mu    sync.RWMutex
	lists map[listKey]*list
}

// listKey names a list. The NodePool is empty where all pools of the class share one.
type listKey struct{ nodeClass, nodePool string }

// list is what was last computed for a NodeClass, and what from.
type list struct {
	class     class
	inventory uint64
	marks     uint64

	layout    layout
	available [][]bool // by type, then by zone
	types     []*cloudprovider.InstanceType
	flaps     flaps

	used atomic.Int64 // Unix seconds
}

// New makes a Provider.
func New(deps Deps) (*Provider, error) {
	if deps.Inventory == nil {
		return nil, errors.New("making the instance types, there is no inventory")
	}
	if deps.VMMemoryOverhead < 0 || deps.VMMemoryOverhead >= 1 {
		return nil, fmt.Errorf("making the instance types, found a VM memory overhead of %g, want a share from 0 to below 1, such as 0.075", deps.VMMemoryOverhead)
	}
	if len(deps.Catalog.types) == 0 {
		deps.Catalog = DefaultCatalog()
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	p := &Provider{deps: deps, unavailable: newUnavailable(deps.Clock), lists: map[listKey]*list{}}
	for _, t := range deps.Catalog.Types() {
		p.prices = append(p.prices, deps.Pricing.Price(t, deps.Devices.deviceCount(t)))
	}
	if deps.Registerer != nil {
		if err := deps.Registerer.Register(newOfferingMetrics(p)); err != nil {
			return nil, fmt.Errorf("registering the offerings' metrics, %w", err)
		}
	}
	return p, nil
}

// List gives all types with all known zones of the NodeClass. As long as nothing
// changed it is the same slice; it and what it holds must not be changed.
func (p *Provider) List(nodeClass *v1alpha1.ProxmoxNodeClass) []*cloudprovider.InstanceType {
	return p.current(nodeClass, "").types
}

// ListFor is List for one NodePool. It differs where the NodeClass has a rule about
// the Hosts of a pool's VMs.
func (p *Provider) ListFor(nodeClass *v1alpha1.ProxmoxNodeClass, nodePool string) []*cloudprovider.InstanceType {
	return p.current(nodeClass, nodePool).types
}

// current gives the NodeClass's list, computed anew if something changed.
func (p *Provider) current(nodeClass *v1alpha1.ProxmoxNodeClass, nodePool string) *list {
	view, marks, c, now := p.deps.Inventory.View(), p.unavailable.current(), classOf(nodeClass), p.deps.Clock.Now()
	c.cpu, c.slotTag = p.deps.CPULayouts.of(nodeClass)
	key := listKey{nodeClass: nodeClass.Name}
	if c.affinity != "" && c.affinity != v1alpha1.PoolAffinityNone {
		key.nodePool = nodePool
	}
	p.mu.RLock()
	l := p.lists[key]
	p.mu.RUnlock()
	if !l.isFrom(view, marks, c, now) {
		l = p.refresh(key, c)
	}
	l.used.Store(now.Unix())
	return l
}

func (l *list) isFrom(view inventory.View, marks uint64, c class, now time.Time) bool {
	return l != nil && l.inventory == view.Generation && l.marks == marks && l.class.equal(c) && now.UnixNano() < l.flaps.next
}

// refresh computes a NodeClass's list; callers at the same time share it. What it is
// computed from is looked at under the lock, so that lists only ever get newer: the View
// that a caller came with may be outdated by now, and what that one lacks is no loss.
func (p *Provider) refresh(key listKey, c class) *list {
	p.mu.Lock()
	defer p.mu.Unlock()
	view, marks, now := p.deps.Inventory.View(), p.unavailable.current(), p.deps.Clock.Now()
	before := p.lists[key]
	if before.isFrom(view, marks, c, now) {
		return before
	}
	l := p.compute(key, before, view, c)
	l.class, l.inventory, l.marks = c.clone(), view.Generation, marks
	p.lists[key] = l

	idle := now.Add(-idleTime).Unix()
	for other, unused := range p.lists {
		if other != key && unused.used.Load() < idle {
			delete(p.lists, other)
		}
	}
	return l
}

// compute makes a list. Types that stay as they were keep their objects, and with
// them what Karpenter cached.
func (p *Provider) compute(key listKey, before *list, view inventory.View, c class) *list {
	now := p.deps.Clock.Now()
	l := &list{layout: p.deps.CPULayouts.withMeans(layoutOf(view, key, c), view), flaps: flaps{next: math.MaxInt64}}
	if before != nil {
		l.flaps = before.flaps.passOn(now)
	}
	keep := before != nil && before.layout.equal(l.layout)
	same := keep
	was := before.wasAvailable(l.layout)
	f := sync.OnceValue(func() frame { return newFrame(l.layout, p.deps.Devices) })
	for n, t := range p.deps.Catalog.Types() {
		available := p.availability(view, l.layout, t)
		for z := range available {
			available[z] = l.flaps.judge(flapKey{l.layout.zones[z].Zone, t.Name}, was(n, z, available[z]), available[z], now)
		}
		if keep && slices.Equal(available, before.available[n]) {
			l.available = append(l.available, before.available[n])
			l.types = append(l.types, before.types[n])
			continue
		}
		same = false
		l.available = append(l.available, available)
		l.types = append(l.types, p.instanceType(f(), t, p.prices[n], available))
	}
	if same {
		l.types = before.types
	}
	return l
}

// wasAvailable looks up whether a type was offered in a zone of the new layout
// before. What was not listed before is no change.
func (l *list) wasAvailable(now layout) func(instanceType, zone int, fits bool) bool {
	if l == nil {
		return func(_, _ int, fits bool) bool { return fits }
	}
	if len(now.zones) == len(l.layout.zones) && slices.EqualFunc(now.zones, l.layout.zones, func(a, b zone) bool { return a.Zone == b.Zone }) {
		return func(instanceType, zone int, _ bool) bool { return l.available[instanceType][zone] }
	}
	index := make(map[placement.Zone]int, len(l.layout.zones))
	for n, z := range l.layout.zones {
		index[z.Zone] = n
	}
	return func(instanceType, zone int, fits bool) bool {
		n, ok := index[now.zones[zone].Zone]
		if !ok {
			return fits
		}
		return l.available[instanceType][n]
	}
}

// availability tells for each zone whether the type can be launched there.
func (p *Provider) availability(view inventory.View, l layout, t Type) []bool {
	available := make([]bool, len(l.zones))
	need := p.needOf(l, t)
	for n, z := range l.zones {
		need.Storage, need.Inherited, need.PinningSupport = z.storage, z.inherited(), z.means
		_, marked := p.unavailable.find(Offerings{z.Zone, t.Name, l.nodeClass})
		available[n] = z.excluded == "" && z.exhausted == "" && z.template != 0 && z.ready && !marked && placement.Fits(view, z.Zone, need)
	}
	return available
}

// needOf is what a VM of the type takes, apart from what differs by zone.
func (p *Provider) needOf(l layout, t Type) placement.Need {
	return placement.Need{
		CPUs: t.CPUs, MemoryBytes: t.MemoryBytes, DiskBytes: max(l.diskBytes, t.EphemeralBytes),
		Devices: p.deps.Devices.needs(t), NodePool: l.nodePool, Affinity: l.affinity, Layout: l.cpu,
	}
}

// needIn is what a VM of the type takes in a zone.
func (p *Provider) needIn(l layout, t Type, z zone) placement.Need {
	need := p.needOf(l, t)
	need.Storage, need.Inherited, need.PinningSupport = z.storage, z.inherited(), z.means
	return need
}

// Type looks a type of the catalogue up.
func (p *Provider) Type(name string) (Type, bool) { return p.deps.Catalog.Get(name) }

// MarkUnavailable takes offerings away for a time, because a launch there failed
// for that reason.
func (p *Provider) MarkUnavailable(what Offerings, reason string, ttl time.Duration) {
	p.unavailable.set(what, reason, ttl)
}

// Forgive ends the avoidance of what failed for one NodeClass: it was changed.
func (p *Provider) ResetFailures(nodeClass string) { p.unavailable.forgive(nodeClass) }

// Marked tells why offerings are avoided for a while; empty when they are not.
func (p *Provider) UnavailableReason(what Offerings) string {
	p.unavailable.current()
	return p.unavailable.reason(what)
}

// Reasons tells for each zone of the NodeClass where the type is not available why.
func (p *Provider) UnavailableReasons(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string) map[placement.Zone]string {
	t, ok := p.Type(instanceType)
	if !ok {
		return nil
	}
	l, view, now := p.current(nodeClass, ""), p.deps.Inventory.View(), p.deps.Clock.Now()
	reasons := map[placement.Zone]string{}
	for _, z := range l.layout.zones {
		if reason := p.unavailable.reason(Offerings{z.Zone, t.Name, nodeClass.Name}); reason != "" {
			reasons[z.Zone] = reason
		} else if reason := cmp.Or(z.blocked(), z.exhausted); reason != "" {
			reasons[z.Zone] = reason
		} else if ok, reason := placement.Fit(view, z.Zone, p.needIn(l.layout, t, z)); !ok {
			reasons[z.Zone] = reason
		} else if reason := l.flaps.known[flapKey{z.Zone, t.Name}].reason(now); reason != "" {
			reasons[z.Zone] = reason
		}
	}
	return reasons
}

// Room is nil when any offering of the NodeClass is available. Otherwise it tells
// Host by Host why not even the smallest type is.
func (p *Provider) CheckCapacity(nodeClass *v1alpha1.ProxmoxNodeClass) *placement.NoFitError {
	l := p.current(nodeClass, "")
	smallest := -1
	for n, available := range l.available {
		if slices.Contains(available, true) {
			return nil
		}
		if smallest < 0 || p.prices[n] < p.prices[smallest] {
			smallest = n
		}
	}
	e := &placement.NoFitError{}
	if smallest >= 0 {
		e.InstanceType = l.types[smallest].Name
	}
	reasons := p.UnavailableReasons(nodeClass, e.InstanceType)
	for _, z := range l.layout.zones {
		// Beside the Host's name its reason need not name it again.
		e.Hosts = append(e.Hosts, placement.HostReason{Zone: z.Zone, Reason: strings.TrimPrefix(reasons[z.Zone], z.Host+": ")})
	}
	return e
}
