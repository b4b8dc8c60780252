// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"math"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// Pricing is the cost model of a Node: the sum of its parts, times the price factor of
// the Host (inventory.HostSettings). Prices have no currency: Karpenter only compares
// them. If all prices are zero, Karpenter never consolidates.
type Pricing struct {
	PerVCPU   float64
	PerGB     float64
	PerNode   float64
	PerDevice float64
}

// spotFactor is the price of spot capacity relative to on-demand, so Karpenter prefers it where a
// NodePool allows both.
const spotFactor = 0.5

// Price returns the price of a Node of the type with that many devices, on a Host with
// price factor 1.
func (p Pricing) Price(t Type, devices int) float64 {
	price := p.PerVCPU*float64(t.CPUs) + p.PerGB*float64(t.MemoryBytes)/1e9 + p.PerNode + p.PerDevice*float64(devices)
	if t.Spot {
		price *= spotFactor
	}
	return price
}

// defaultIdleShare is the share of a Host's power that it uses without load, if the settings
// contain no watts.
const defaultIdleShare = 0.5

// energyFactor returns the factor for the power that a Host uses while it is on, which its VMs
// share: the fewer there are, the more expensive is each. So core's consolidation moves VMs from
// the Hosts with the fewest VMs to others until they are empty. It is 1 for Hosts that are never
// shut down. The share in use counts in quarters, so prices rarely change.
func energyFactor(host inventory.HostState) float64 {
	if host.Power.Mode != declared.PowerEnabled || host.Allocatable.CPUs <= 0 || host.Allocatable.MemoryBytes <= 0 {
		return 1
	}
	idle := defaultIdleShare
	if host.Power.WattsIdle > 0 && host.Power.WattsFull > host.Power.WattsIdle {
		idle = host.Power.WattsIdle / host.Power.WattsFull
	}
	used := host.Allocatable.Minus(host.Free)
	share := max(float64(used.CPUs)/float64(host.Allocatable.CPUs), float64(used.MemoryBytes)/float64(host.Allocatable.MemoryBytes))
	quarters := min(math.Ceil(4*share), 4)
	if quarters <= 0 {
		quarters = 0.5 // the first VM
	}
	return 1 + idle*4/quarters
}

// sleepingFactor multiplies the highest factor of the Hosts that are on for those that were shut
// down to save energy. No Host is woken while another one that the Claim allows has capacity.
const sleepingFactor = 100

// replacementFactor is used instead of it in the offerings of a type that is available on a Host that is
// on. Core compares the price of a Node with that of the most expensive offering of a
// replacement, and would not replace any Node by a smaller one while a Host sleeps.
const replacementFactor = 1.01

// priceFactors returns the factors of a type's offerings in the zones.
func priceFactors(zones []zone, available []bool) []float64 {
	highest, isAvailable := 1.0, false
	for n, z := range zones {
		if !z.asleep {
			highest, isAvailable = max(highest, z.priceFactor), isAvailable || available[n]
		}
	}
	factors := make([]float64, len(zones))
	for n, z := range zones {
		factors[n] = z.priceFactor
		if z.asleep && isAvailable {
			factors[n] = replacementFactor * highest
		}
	}
	return factors
}

// raiseSleeping makes Hosts that were shut down to save energy more expensive than all others.
func raiseSleeping(zones map[placement.Zone]zone) {
	highest := 1.0
	for _, z := range zones {
		if !z.asleep {
			highest = max(highest, z.priceFactor)
		}
	}
	for key, z := range zones {
		if z.asleep {
			z.priceFactor *= sleepingFactor * highest
			zones[key] = z
		}
	}
}

// unifyPriceFactors gives Hosts with the same name the highest of their factors.
// Karpenter finds the price of a Node by zone and capacity type and takes the first
// match of any region. A cheaper Node on a Host with the same name would be replaced
// forever. Hosts that are asleep have no Nodes.
func unifyPriceFactors(zones map[placement.Zone]zone) {
	highest := make(map[string]float64, len(zones))
	for key, z := range zones {
		if !z.asleep {
			highest[key.Host] = max(highest[key.Host], z.priceFactor)
		}
	}
	for key, z := range zones {
		z.priceFactor = max(z.priceFactor, highest[key.Host])
		zones[key] = z
	}
}
