// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// Viewer returns the current View. *inventory.Inventory implements it.
type Viewer interface {
	View() inventory.View
}

// Deps are the dependencies and settings of a Provider. Only Inventory is required.
type Deps struct {
	Inventory Viewer
	// Catalog defaults to DefaultCatalog.
	Catalog Catalog
	Pricing Pricing
	// VMSizePolicy applies to NodeClasses without a policy of their own. The default is
	// VMSizeInstanceType.
	VMSizePolicy v1alpha1.VMSizePolicy
	// Devices are the PCI mappings of extended resources.
	PCIResources Devices
	// VolumeAttachmentLimits is the maximum number of volumes of a Node by CSI driver, until the
	// driver reports it.
	VolumeAttachmentLimits map[string]int
	CPULayouts             CPULayouts
	// VMMemoryOverheadPercent is the fraction of a VM's memory that firmware and kernel use, so
	// the Node does not report it, until Nodes report their memory. The default depends on the
	// size. Karpenter rejects a Node with less than 90 % of its claim's capacity.
	VMMemoryOverheadPercent *float64
	Clock                   clock.Clock
	// Registerer registers the metrics; nil disables them.
	Registerer prometheus.Registerer
}

// Provider lists instance types. All methods are safe for concurrent use.
type Provider struct {
	deps        Deps
	prices      []float64 // in the order of the catalog
	unavailable *backoff.Holds[OfferingSelector]
	cloneQueue  *placement.CloneQueue
	nodes       *existingNodes
	estimate    memoryEstimate

	mu    sync.RWMutex
	lists map[listKey]*list
}

// New returns a Provider. It returns an error if the dependencies are invalid.
func New(deps Deps) (*Provider, error) {
	if deps.Inventory == nil {
		return nil, errors.New("creating instance type provider: no inventory")
	}
	if percent := deps.VMMemoryOverheadPercent; percent != nil && (*percent < 0 || *percent >= 1) {
		return nil, fmt.Errorf("creating instance type provider: found VM memory overhead %g, want a fraction of at least 0 and below 1, such as 0.075", *percent)
	}
	if len(deps.Catalog.types) == 0 {
		deps.Catalog = DefaultCatalog()
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	p := &Provider{
		deps: deps, unavailable: backoff.NewHolds[OfferingSelector](deps.Clock, backoff.Exponential{}), lists: map[listKey]*list{},
		nodes:    &existingNodes{sizes: map[string]time.Time{}},
		estimate: memoryEstimate{percent: deps.VMMemoryOverheadPercent},
	}
	for _, t := range deps.Catalog.Types() {
		p.prices = append(p.prices, deps.Pricing.Price(t, deps.PCIResources.deviceCount(t)))
	}
	if deps.Registerer != nil {
		if err := deps.Registerer.Register(newOfferingMetrics(p)); err != nil {
			return nil, fmt.Errorf("registering offering metrics: %w", err)
		}
	}
	return p, nil
}

// LimitCloneQueue makes offerings unavailable whose clones would wait too long. Call it
// before the Provider is used.
func (p *Provider) LimitCloneQueue(queue placement.CloneQueue) { p.cloneQueue = &queue }

// ForView returns a Provider of the same types and prices for another View.
func (p *Provider) ForView(view Viewer) *Provider {
	deps := p.deps
	deps.Inventory = view
	return &Provider{deps: deps, prices: p.prices, unavailable: p.unavailable, cloneQueue: p.cloneQueue, nodes: p.nodes, estimate: p.estimate, lists: map[listKey]*list{}}
}

// List returns all types with all known zones of the NodeClass. The NodePool matters if
// the NodeClass has a pool affinity. Without a change List returns the same slice, which
// must not be modified.
func (p *Provider) List(nodeClass *v1alpha1.ProxmoxNodeClass, nodePool string) []*cloudprovider.InstanceType {
	return p.currentList(nodeClass, nodePool).types
}

// UnavailableReason returns why the NodeClass cannot have a VM of the type in a zone,
// apart from the capacity of the Host: the NodeClass cannot use the zone, or a recent
// launch failed. It returns "" if neither is the case.
func (p *Provider) UnavailableReason(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string, where placement.Zone) string {
	for _, z := range p.currentList(nodeClass, "").params.zones {
		if z.Zone == where {
			return cmp.Or(z.blockedReason(), p.failureReason(OfferingSelector{where, instanceType, nodeClass.Name}))
		}
	}
	return "host is unknown"
}

// UnavailableReasons returns for each zone of the NodeClass where the type is
// unavailable the reason.
func (p *Provider) UnavailableReasons(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string) map[placement.Zone]string {
	l := p.currentList(nodeClass, "")
	n := slices.IndexFunc(l.variants, func(v variant) bool { return v.Name == instanceType })
	if n < 0 {
		return nil
	}
	reasons := map[placement.Zone]string{}
	for _, z := range l.params.zones {
		if reason := p.unavailableReason(l, l.variants[n], z); reason != "" {
			reasons[z.Zone] = reason
		}
	}
	return reasons
}

// unavailableReason returns why a type of the list is unavailable in a zone; empty if it is
// available.
func (p *Provider) unavailableReason(l *list, v variant, z zone) string {
	if reason := l.params.sizing.excludedReason(v.Type); reason != "" {
		return fmt.Sprintf("instance type %s %s", v.Name, reason)
	}
	if reason := cmp.Or(p.failureReason(OfferingSelector{z.Zone, v.Name, l.params.nodeClass}), z.blockedReason(), z.exhaustedReason); reason != "" {
		return reason
	}
	if err := p.checkKubeletSize(l.params, v.Type); err != nil {
		return err.Error()
	}
	if other := l.variantIn(v, z); other.Name != v.Name {
		return fmt.Sprintf("hosts of architecture %s have the instance type %s instead", cmp.Or(z.arch, karpv1.ArchitectureAmd64), other.Name)
	}
	if ok, reason := placement.Fit(p.deps.Inventory.View(), z.Zone, p.newNeedIn(l.params, v.Type, z)); !ok {
		return reason
	}
	if n := slices.IndexFunc(l.params.zones, func(other zone) bool { return other.Zone == z.Zone }); v.exact && n >= 0 && l.isContained(v, n) {
		return "a larger instance type is available, and VMs get the part of it that they need"
	}
	return ""
}

// CheckCapacity returns nil if any offering of the NodeClass is available. Otherwise it
// returns for each Host why the cheapest type is unavailable.
func (p *Provider) CheckCapacity(nodeClass *v1alpha1.ProxmoxNodeClass) *placement.NoFitError {
	l := p.currentList(nodeClass, "")
	cheapest := -1
	for n, available := range l.available {
		if slices.Contains(available, true) {
			return nil
		}
		if !l.variants[n].unused && !l.variants[n].exact && (cheapest < 0 || l.isPreferred(n, cheapest)) {
			cheapest = n
		}
	}
	e := &placement.NoFitError{InstanceType: l.variants[cheapest].Name}
	for _, z := range l.params.zones {
		reason := p.unavailableReason(l, l.variantIn(l.variants[cheapest], z), z)
		// The error already names the Host.
		e.Hosts = append(e.Hosts, placement.HostReason{Zone: z.Zone, Reason: strings.TrimPrefix(reason, z.Host+": ")})
	}
	return e
}

// CheckReserve reports whether the NodeClass or the settings of its Hosts keep a reserve, and
// what violates it; empty if nothing does.
func (p *Provider) CheckReserve(nodeClass *v1alpha1.ProxmoxNodeClass) (kept bool, violation string) {
	var zones []placement.Zone
	for _, z := range p.currentList(nodeClass, "").params.zones {
		if z.template != 0 {
			zones = append(zones, z.Zone)
		}
	}
	return placement.CheckReserve(p.deps.Inventory.View(), zones, nodeClass.Spec.PlacementStrategy.Reserve == v1alpha1.ReserveLargestHost)
}

// isPreferred reports whether type n explains better than another why nothing is available: it is
// cheaper, and spec.vmSize does not exclude it.
func (l *list) isPreferred(n, other int) bool {
	a, b := l.variants[n], l.variants[other]
	excludedA, excludedB := l.params.sizing.excludedReason(a.Type) != "", l.params.sizing.excludedReason(b.Type) != ""
	if excludedA != excludedB {
		return excludedB
	}
	return a.price < b.price
}

// Get returns Karpenter's object of a type for the NodeClass. It returns false if the
// catalog has no such type.
func (p *Provider) Get(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string) (*cloudprovider.InstanceType, bool) {
	l := p.currentList(nodeClass, "")
	n := slices.IndexFunc(l.variants, func(v variant) bool { return v.Name == instanceType })
	if n < 0 || l.variants[n].exact {
		// The NodeClass has no arm64 Hosts anymore; the variants have the same size. An exact size
		// is recorded, so it remains listed.
		var ok bool
		if n, ok = p.deps.Catalog.byName[strings.TrimSuffix(instanceType, arm64Suffix)]; !ok {
			return p.getSize(nodeClass, instanceType)
		}
	}
	return l.types[n], true
}

// Labels returns the labels of a Node of the type in a zone of the NodeClass. Create
// returns them, so the Node matches its offering.
func (p *Provider) Labels(nodeClass *v1alpha1.ProxmoxNodeClass, instanceType string, where placement.Zone) map[string]string {
	t, ok := p.deps.Catalog.Get(instanceType)
	if !ok {
		return nil
	}
	z := zone{nodeLabels: nodeLabels{Zone: where}}
	for _, known := range p.currentList(nodeClass, "").params.zones {
		if known.Zone == where {
			z = known
		}
	}
	labels := z.labelsOf(t).labels()
	labels[corev1.LabelArchStable] = cmp.Or(z.arch, karpv1.ArchitectureAmd64)
	labels[corev1.LabelOSStable] = cmp.Or(z.os, string(corev1.Linux))
	maps.Copy(labels, t.labels())
	return labels
}

// CapacityType returns the capacity type of Nodes of an instance type.
func (p *Provider) CapacityType(instanceType string) string {
	t, _ := p.deps.Catalog.Get(instanceType)
	return t.capacityType()
}

// Size returns the size of an instance type; false if it was removed from the catalog.
func (p *Provider) Size(instanceType string) (Type, bool) { return p.deps.Catalog.Get(instanceType) }

// Need returns the capacity that a VM of the type takes in a zone of the NodeClass. It
// returns false if the catalog has no such type.
func (p *Provider) Need(nodeClass *v1alpha1.ProxmoxNodeClass, nodePool, instanceType string, where placement.Zone) (placement.Need, bool) {
	t, ok := p.deps.Catalog.Get(instanceType)
	if !ok {
		return placement.Need{}, false
	}
	params := p.currentList(nodeClass, nodePool).params
	params.nodePool = nodePool
	for _, z := range params.zones {
		if z.Zone == where {
			return p.newNeedIn(params, t, z), true
		}
	}
	return p.newNeed(params, t), true
}
