// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import "fmt"

// Energy is estimated power, and what the energy costs.
type Energy struct {
	Watts float64 `json:"watts"`
	// CostPerHour is zero if the settings contain no price of energy.
	CostPerHour float64 `json:"costPerHour,omitempty"`
}

// Plus returns e + o.
func (e Energy) Plus(o Energy) Energy {
	return Energy{e.Watts + o.Watts, e.CostPerHour + o.CostPerHour}
}

// Part returns a part of e.
func (e Energy) Part(fraction float64) Energy {
	return Energy{e.Watts * fraction, e.CostPerHour * fraction}
}

// String returns the power, and energy and cost of a day. Costs have no currency.
func (e Energy) String() string {
	text := fmt.Sprintf("%.0f W, %.1f kWh/day", e.Watts, e.Watts*24/1000)
	if e.CostPerHour > 0 {
		text += fmt.Sprintf(", %.2f/day", e.CostPerHour*24)
	}
	return text
}

// Energy returns the Energy of a Host that is online, with a fraction of its CPUs in use. It is
// zero if the settings contain no watts.
func (s PowerSettings) Energy(load float64) Energy {
	watts := s.Watts(load)
	return Energy{Watts: watts, CostPerHour: watts / 1000 * s.EnergyPrice}
}
