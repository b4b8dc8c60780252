// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

// The default prices. They have no currency: Karpenter only compares them.
const (
	DefaultPricePerVCPU = 0.025
	DefaultPricePerGB   = 0.001 // of memory, decimal
	// Each Node costs something by itself (kubelet, daemons, an address), so of
	// two equal choices fewer, larger Nodes are cheaper.
	DefaultPricePerNode = 0.005
	// A device costs more than any size without one: pods that need none must not
	// take it from those that do.
	DefaultPricePerDevice = 1.0
)

// Pricing is the cost model of a Node: the sum of its parts, times the factor of
// the Host (inventory.HostSettings). Prices that are all zero would keep Karpenter
// from ever consolidating, so the zero value means the defaults.
type Pricing struct {
	PerVCPU   float64
	PerGB     float64
	PerNode   float64
	PerDevice float64
}

// DefaultPricing is the cost model without settings.
func DefaultPricing() Pricing {
	return Pricing{PerVCPU: DefaultPricePerVCPU, PerGB: DefaultPricePerGB, PerNode: DefaultPricePerNode, PerDevice: DefaultPricePerDevice}
}

// Price of a Node of that type, with so many devices, on a Host of factor one.
func (p Pricing) Price(t Type, devices int) float64 {
	return p.PerVCPU*float64(t.CPUs) + p.PerGB*float64(t.MemoryBytes)/1e9 + p.PerNode + p.PerDevice*float64(devices)
}
