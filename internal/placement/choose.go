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

// Request describes a Claim to Choose.
type Request struct {
	ClaimUID string
	NodePool string
	// Strategy defaults to Balanced.
	Strategy v1alpha1.ZoneBalance
	// Affinity is the rule for all VMs of the NodePool.
	Affinity v1alpha1.PoolAffinity
	// Options satisfy the Claim, cheapest first.
	Options []Option
	// Storages are the storages of the boot disk by zone, for Needs without one: the
	// template's storage, which differs between Hosts.
	Storages map[Zone]string
	// Disks are the storages that the disks may use, by zone. Zones without an entry have
	// only the boot disk, on the storage above.
	Disks map[Zone]*Disks
	// Inherited are the PCI mappings of the templates by zone.
	Inherited map[Zone][]string
	// PinningSupport is how VMs can be pinned, by zone.
	PinningSupport map[Zone]PinningSupport
	// Excluded zones are in no Option. The error lists them with this reason.
	Excluded map[Zone]string
	// NoOptionsReason is why there are no Options.
	NoOptionsReason string
}

// Option is an instance type and the zones where it satisfies the Claim.
type Option struct {
	InstanceType string
	Need         Need
	Price        float64
	Zones        []Zone
}

// Placement is the result of Choose.
type Placement struct {
	InstanceType string
	Price        float64
	Zone         Zone
	// Need is the Need of the Option, completed with the zone's storage.
	Need Need
	// DiskStorages are the storages of the disks besides the boot disk, in their order.
	DiskStorages []string
	// Devices are the PCI mappings that the VM gets a device of.
	Devices []string
	// Binding is the assignment to NUMA cells and cores; nil when the VM has none.
	Binding *Binding
}

// Choose picks the cheapest option that fits on any Host and, among the Hosts where it
// fits, the best by strategy:
//
//   - Balanced: the Host where the larger of the CPU and memory shares is lowest after
//     the placement, including Reservations, so a burst spreads; then the Host with
//     fewer VMs of the NodePool;
//   - AvailabilityFirst: the Host with the fewest VMs of the NodePool, so the loss of
//     one Host affects the fewest of them;
//   - Packed: the Host where the share is highest after the placement, so other Hosts
//     stay free for large VMs; then the Host with more VMs of the NodePool.
//
// A VM that is bound to NUMA cells first prefers the Host where it needs the fewest
// cells. Remaining ties are broken by a hash of Claim and Host: stable for one Claim and
// even over many. Choose returns a *NoFitError if no option fits.
func Choose(view inventory.View, request Request) (Placement, error) {
	zones := zoneCache{view: view, request: &request}
	for n := range request.Options {
		option := &request.Options[n]
		need := request.completeNeed(option)
		best, found := candidate{}, false
		for _, s := range zones.statesFor(option) {
			if !s.check(&need, nil) {
				continue
			}
			c := newCandidate(s, &need)
			if !found || c.isBetterThan(best, &request) {
				best, found = c, true
			}
		}
		if found {
			return request.newPlacement(option, need, best.zoneState), nil
		}
	}
	return Placement{}, newNoFitError(&zones)
}

// completeNeed returns the option's Need with the NodePool and affinity of the request.
func (r *Request) completeNeed(option *Option) Need {
	need := option.Need
	need.NodePool, need.Affinity = r.NodePool, r.Affinity
	return need
}

// newPlacement returns the Placement for a zone where the option fits.
func (r *Request) newPlacement(option *Option, need Need, s *zoneState) Placement {
	need.Inherited, need.PinningSupport = s.inherited, s.pinning
	var diskStorages []string
	need.Storage, diskStorages, _ = s.chooseStorages(&need, nil)
	devices, _, _ := assignDevices(s.host.FreeDevices, s.inherited, need.Devices)
	return Placement{
		InstanceType: option.InstanceType, Price: option.Price, Zone: s.zone, Need: need, DiskStorages: diskStorages, Devices: devices, Binding: s.bind(&need),
	}
}

// zoneCache keeps the state of the zones of the last option: most options share them.
type zoneCache struct {
	view    inventory.View
	request *Request
	zones   []Zone
	storage string
	disks   *Disks
	states  []*zoneState
}

// statesFor returns the states of an option's zones.
func (c *zoneCache) statesFor(option *Option) []*zoneState {
	if c.states != nil && c.storage == option.Need.Storage && c.disks == option.Need.Disks && sameZones(c.zones, option.Zones) {
		return c.states
	}
	c.zones, c.storage, c.disks, c.states = option.Zones, option.Need.Storage, option.Need.Disks, make([]*zoneState, len(option.Zones))
	all := make([]zoneState, len(option.Zones))
	for n, zone := range option.Zones {
		all[n] = newZoneState(c.view, zone, zoneOptions{
			cmp.Or(option.Need.Storage, c.request.Storages[zone]), cmp.Or(option.Need.Disks, c.request.Disks[zone]), c.request.Inherited[zone], c.request.PinningSupport[zone],
		})
		c.states[n] = &all[n]
	}
	return c.states
}

// sameZones reports whether both slices contain the same zones. It is fast when both are
// the same slice.
func sameZones(a, b []Zone) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// candidate is a Host that fits, with the values that the strategies compare.
type candidate struct {
	*zoneState
	share float64
	vms   int
	cells int // number of NUMA cells of a bound VM
}

func newCandidate(s *zoneState, need *Need) candidate {
	taken := s.host.Allocatable.Minus(s.host.Free).Plus(need.amount())
	return candidate{
		zoneState: s,
		share: max(
			float64(taken.CPUs)/float64(s.host.Allocatable.CPUs),
			float64(taken.MemoryBytes)/float64(s.host.Allocatable.MemoryBytes),
		),
		vms:   s.view.NodePoolVMs(s.zone.Region, s.zone.Host, need.NodePool),
		cells: s.countCells(need),
	}
}

// isBetterThan reports whether the strategy of the request prefers c over other.
func (c candidate) isBetterThan(other candidate, request *Request) bool {
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

// hash returns an evenly distributed hash of two strings.
func hash(a, b string) uint64 {
	sum := sha256.Sum256([]byte(a + "\x00" + b))
	return binary.BigEndian.Uint64(sum[:8])
}
