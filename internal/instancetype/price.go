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
)

// Pricing is the cost model of a Node. Prices that are all zero would keep
// Karpenter from ever consolidating, so the zero value means the defaults.
type Pricing struct {
	PerVCPU float64
	PerGB   float64
	PerNode float64
}

// DefaultPricing is the cost model without settings.
func DefaultPricing() Pricing {
	return Pricing{PerVCPU: DefaultPricePerVCPU, PerGB: DefaultPricePerGB, PerNode: DefaultPricePerNode}
}

// Price of a Node of that type.
func (p Pricing) Price(t Type) float64 {
	return p.PerVCPU*float64(t.CPUs) + p.PerGB*float64(t.MemoryBytes)/1e9 + p.PerNode
}
