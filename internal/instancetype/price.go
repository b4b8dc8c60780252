// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"

// Pricing is the cost model of a Node: the sum of its parts, times the price factor of
// the Host (inventory.HostSettings). Prices have no currency: Karpenter only compares
// them. If all prices are zero, Karpenter never consolidates.
type Pricing struct {
	PerVCPU   float64
	PerGB     float64
	PerNode   float64
	PerDevice float64
}

// Price returns the price of a Node of the type with that many devices, on a Host with
// price factor 1.
func (p Pricing) Price(t Type, devices int) float64 {
	return p.PerVCPU*float64(t.CPUs) + p.PerGB*float64(t.MemoryBytes)/1e9 + p.PerNode + p.PerDevice*float64(devices)
}

// unifyPriceFactors gives Hosts with the same name the highest of their factors.
// Karpenter finds the price of a Node by zone and capacity type and takes the first
// match of any region. A cheaper Node on a Host with the same name would be replaced
// forever.
func unifyPriceFactors(zones map[placement.Zone]zone) {
	highest := make(map[string]float64, len(zones))
	for key, z := range zones {
		highest[key.Host] = max(highest[key.Host], z.priceFactor)
	}
	for key, z := range zones {
		z.priceFactor = highest[key.Host]
		zones[key] = z
	}
}

// offeringPrice returns the price of an offering: the price of the type times the price
// factor of the Host.
func offeringPrice(typePrice float64, z zone) float64 { return typePrice * z.priceFactor }
