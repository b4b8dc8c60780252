// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Request asks for a place for one Claim.
type Request struct {
	ClaimUID string
	NodePool string
	// Strategy is Balanced where it is empty.
	Strategy v1alpha1.ZoneBalance
	// Affinity is the rule about all VMs of the NodePool.
	Affinity v1alpha1.PoolAffinity
	// Options that satisfy the Claim, the cheapest first.
	Options []Option
	// Storages say where the boot disk goes in a zone, for Needs that name none:
	// the template's storage, which differs from Host to Host.
	Storages map[Zone]string
	// Inherited devices by zone, likewise.
	Inherited map[Zone][]string
	// Means to lay a VM out as its Need asks, by zone.
	PinningSupport map[Zone]PinningSupport
	// Excluded zones are in no Option; they appear in the error with this reason.
	Excluded map[Zone]string
	// Why there are no Options, where there are none.
	Why string
}

// Option is an instance type and the zones where the Claim may have it.
type Option struct {
	InstanceType string
	Need         Need
	Price        float64
	Zones        []Zone
}

// Placement is a decision.
type Placement struct {
	InstanceType string
	Price        float64
	Zone         Zone
	// Need with the storage that the disk goes to.
	Need Need
	// Devices are the PCI mappings that the VM gets a device of.
	Devices []string
	// Binding to cells and cores of the Host; nil where the VM floats.
	Binding *Binding
}

// Choose takes the cheapest option that fits anywhere and, among the Hosts where
// it fits, the best by strategy:
//
//   - Balanced: where the larger of the CPU and memory shares is lowest after the
//     placement, Reservations counted, so that a burst spreads; then the Host with
//     fewer VMs of the NodePool;
//   - AvailabilityFirst: the Host with the fewest VMs of the NodePool, so that one
//     Host lost takes the fewest of them along;
//   - Packed: where the share is highest after the placement, so that other Hosts
//     stay empty for what is large; then the Host with more VMs of the NodePool.
//
// Before all that comes the Host where a VM that is bound to cells needs the fewest.
// What is still equal is decided by a hash of claim and Host: stable for one
// claim, without preference for any Host over many. The error is a *NoFitError.
func Choose(view inventory.View, request Request) (Placement, error) {
	sites := siteCache{view: view, request: &request}
	for n := range request.Options {
		option := &request.Options[n]
		need := request.need(option)
		best, found := candidate{}, false
		for _, s := range sites.of(option) {
			if !s.check(&need, nil) {
				continue
			}
			c := newCandidate(s, &need)
			if !found || c.before(best, &request) {
				best, found = c, true
			}
		}
		if found {
			return request.place(option, need, best.site), nil
		}
	}
	return Placement{}, newNoFitError(&sites)
}

// need completes an option's Need with what the request says.
func (r *Request) need(option *Option) Need {
	need := option.Need
	need.NodePool, need.Affinity = r.NodePool, r.Affinity
	return need
}

// place is the decision for a site that fits.
func (r *Request) place(option *Option, need Need, s *site) Placement {
	need.Storage, need.Inherited, need.PinningSupport = s.storage, s.inherited, s.means
	devices, _, _ := assign(s.host.FreeDevices, s.inherited, need.Devices)
	return Placement{
		InstanceType: option.InstanceType, Price: option.Price, Zone: s.zone, Need: need, Devices: devices, Binding: s.bind(&need),
	}
}

// siteCache looks each zone up once: most options share their zones.
type siteCache struct {
	view    inventory.View
	request *Request
	zones   []Zone
	storage string
	sites   []*site
}

// of gives the sites of an option's zones.
func (c *siteCache) of(option *Option) []*site {
	if c.sites != nil && c.storage == option.Need.Storage && sameZones(c.zones, option.Zones) {
		return c.sites
	}
	c.zones, c.storage, c.sites = option.Zones, option.Need.Storage, make([]*site, len(option.Zones))
	all := make([]site, len(option.Zones))
	for n, zone := range option.Zones {
		all[n] = siteOf(c.view, zone, cmp.Or(option.Need.Storage, c.request.Storages[zone]), c.request.Inherited[zone])
		all[n].means = c.request.PinningSupport[zone]
		c.sites[n] = &all[n]
	}
	return c.sites
}

// sameZones is quick where both are one slice.
func sameZones(a, b []Zone) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// candidate is a Host that fits, with what the strategies compare.
type candidate struct {
	*site
	share float64
	vms   int
	cells int // of a VM that is bound to some
}

func newCandidate(s *site, need *Need) candidate {
	taken := s.host.Allocatable.Minus(s.host.Free).Plus(need.amount())
	return candidate{
		site: s,
		share: max(
			float64(taken.CPUs)/float64(s.host.Allocatable.CPUs),
			float64(taken.MemoryBytes)/float64(s.host.Allocatable.MemoryBytes),
		),
		vms:   s.view.NodePoolVMs(s.zone.Region, s.zone.Host, need.NodePool),
		cells: s.cellsFor(need),
	}
}

// before tells whether c is the better choice.
func (c candidate) before(other candidate, request *Request) bool {
	fewer, emptier := cmp.Compare(c.vms, other.vms), cmp.Compare(c.share, other.share)
	var order int
	switch request.Strategy {
	case v1alpha1.ZoneBalanceAvailabilityFirst:
		order = fewer
	case v1alpha1.ZoneBalancePacked:
		order = cmp.Or(-emptier, -fewer)
	default:
		order = cmp.Or(emptier, fewer)
	}
	order = cmp.Or(cmp.Compare(c.cells, other.cells), order)
	if order == 0 {
		order = cmp.Compare(hash(c.zone.String(), request.ClaimUID), hash(other.zone.String(), request.ClaimUID))
	}
	return order < 0
}

// hash mixes two names evenly.
func hash(a, b string) uint64 {
	sum := sha256.Sum256([]byte(a + "\x00" + b))
	return binary.BigEndian.Uint64(sum[:8])
}
