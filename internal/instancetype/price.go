// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

// Pricing is the cost model of a Node: the sum of its parts, times the price factor of
// the Host (inventory.HostSettings). Prices have no currency: Karpenter only compares
// them. If all prices are zero, Karpenter never consolidates.
type Pricing struct {
	PerVCPU   float64
	PerGB     float64
	PerNode   float64
	PerDevice float64
}

// Price of a Node of that type, with so many devices, on a Host of factor one.
func (p Pricing) Price(t Type, devices int) float64 {
	return p.PerVCPU*float64(t.CPUs) + p.PerGB*float64(t.MemoryBytes)/1e9 + p.PerNode + p.PerDevice*float64(devices)
}
