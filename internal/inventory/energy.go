// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

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

// HostEnergy returns the Energy of a Host; zero if it is offline.
func (v View) HostEnergy(host HostState) Energy {
	if row := v.Snapshots[host.Region].Hosts[host.Name]; row.Online {
		return host.Power.Energy(row.CPULoad)
	}
	return Energy{}
}

// SavedEnergy returns the Energy of a Host without load if it is off to save energy.
func (h HostState) SavedEnergy() Energy {
	if h.Sleep != Asleep {
		return Energy{}
	}
	return h.Power.Energy(0)
}

// NodePoolEnergy returns the Energy of each NodePool. The guests of a Host share its Energy in
// proportion to their CPUs.
func (v View) NodePoolEnergy() map[string]Energy {
	out := map[string]Energy{}
	for _, r := range v.Reservations {
		guest, ok := v.Guest(r.Region, r.VMID)
		host, known := v.Host(r.Region, guest.Host)
		if r.Template || !ok || !known || guest.Allocated.CPUs == 0 {
			continue
		}
		if energy := v.HostEnergy(host); energy.Watts > 0 {
			out[r.NodePool] = out[r.NodePool].Plus(energy.Part(float64(guest.Allocated.CPUs) / float64(host.Allocated.CPUs)))
		}
	}
	return out
}
