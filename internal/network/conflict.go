// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import "fmt"

// Disagreement is two pools on one network that take it for a subnet each, and not the
// same: their VMs look for each other behind a router, or in vain.
type SubnetConflict struct {
	Own, Other Source
	// Network is the bridge, with its VLAN.
	Network string
}

// Disagrees finds two pools that disagree, in layouts for one region. Pools of the same
// subnet agree, whatever they share: no address is given twice, and a subnet may have
// more than one router.
func (l Layout) Conflicts(other Layout) (SubnetConflict, bool) {
	for _, a := range l.Interfaces {
		for _, b := range other.Interfaces {
			if a.network() != b.network() {
				continue
			}
			for _, pair := range []SubnetConflict{{Own: a.V4, Other: b.V4}, {Own: a.V6, Other: b.V6}} {
				if pair.Own.Pool == nil || pair.Other.Pool == nil {
					continue
				}
				mine, theirs := pair.Own.Pool.Subnet(), pair.Other.Pool.Subnet()
				if mine != theirs && mine.Overlaps(theirs) {
					pair.Network = a.network()
					return pair, true
				}
			}
		}
	}
	return SubnetConflict{}, false
}

func (i Interface) network() string {
	if i.VLAN != 0 {
		return fmt.Sprintf("bridge %s, VLAN %d", i.Bridge, i.VLAN)
	}
	return "bridge " + i.Bridge
}
