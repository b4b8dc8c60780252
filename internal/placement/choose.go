// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Request asks for a place for one Claim.
type Request struct {
	ClaimUID string
	NodePool string
	// Strategy is Balanced where it is empty.
	Strategy v1alpha1.ZoneBalance
	// Options that satisfy the Claim, the cheapest first.
	Options []Option
	// Storages say where the boot disk goes in a zone, for Needs that name none:
	// the template's storage, which differs from Host to Host.
	Storages map[Zone]string
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
}

// Reservation is what the placement takes from the ledger.
func (p Placement) Reservation(request Request, vmid int) inventory.Reservation {
	return inventory.Reservation{
		ClaimUID:  request.ClaimUID,
		NodePool:  request.NodePool,
		Region:    p.Zone.Region,
		Host:      p.Zone.Host,
		VMID:      vmid,
		Storage:   p.Need.Storage,
		Amount:    p.Need.amount(),
		DiskBytes: p.Need.DiskBytes,
	}
}

// Choose takes the cheapest option that fits anywhere and, among the Hosts where
// it fits, the best by strategy:
//
//   - Balanced: where the larger of the CPU and memory shares is lowest after the
//     placement, Reservations counted, so that a burst spreads; then the Host with
//     fewer VMs of the NodePool;
//   - AvailabilityFirst: the Host with the fewest VMs of the NodePool, so that one
//     Host lost takes the fewest of them along.
//
// What is still equal is decided by a hash of claim and Host: stable for one
// claim, without preference for any Host over many. The error is a *NoFitError.
func Choose(view inventory.View, request Request) (Placement, error) {
	for _, option := range request.Options {
		best, found := candidate{}, false
		for _, zone := range option.Zones {
			need := request.needIn(zone, option.Need)
			if !Fits(view, zone, need) {
				continue
			}
			c := newCandidate(view, zone, need, request)
			if !found || c.before(best, request) {
				best, found = c, true
			}
		}
		if found {
			return Placement{InstanceType: option.InstanceType, Price: option.Price, Zone: best.zone, Need: best.need}, nil
		}
	}
	return Placement{}, newNoFitError(view, request)
}

// needIn completes a Need with the zone's storage.
func (r Request) needIn(zone Zone, need Need) Need {
	if need.Storage == "" {
		need.Storage = r.Storages[zone]
	}
	return need
}

// candidate is a Host that fits, with what the strategies compare.
type candidate struct {
	zone  Zone
	need  Need
	share float64
	vms   int
}

func newCandidate(view inventory.View, zone Zone, need Need, request Request) candidate {
	host, _ := view.Host(zone.Region, zone.Host)
	taken := host.Allocatable.Minus(host.Free).Plus(need.amount())
	return candidate{
		zone: zone,
		need: need,
		share: max(
			float64(taken.CPUs)/float64(host.Allocatable.CPUs),
			float64(taken.MemoryBytes)/float64(host.Allocatable.MemoryBytes),
		),
		vms: view.VMs(zone.Region, zone.Host, request.NodePool),
	}
}

// before tells whether c is the better choice.
func (c candidate) before(other candidate, request Request) bool {
	order := cmp.Compare(c.vms, other.vms)
	if request.Strategy != v1alpha1.ZoneBalanceAvailabilityFirst {
		order = cmp.Or(cmp.Compare(c.share, other.share), order)
	}
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
