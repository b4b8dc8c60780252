// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import "fmt"

// SubnetConflict is two pools on one network with different, overlapping subnets. Their VMs
// cannot reach each other, or only through a router.
type SubnetConflict struct {
	Own, Other Source
	// Network is the bridge with its VLAN.
	Network string
}

// Conflicts returns the first conflict between two layouts of one region, and false if
// there is none. Pools with the same subnet never conflict: no address is assigned twice,
// and a subnet may have more than one router.
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
				own, other := pair.Own.Pool.Subnet(), pair.Other.Pool.Subnet()
				if own != other && own.Overlaps(other) {
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
