// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

// cpuLayout looks whether the Host can lay VMs out as the class asks, whatever room
// it has: cells that are known, and a way to what Proxmox reserves for root.
func cpuLayout(z zone) *finding {
	if z.unboundable != "" {
		return z.onHost("%s", z.unboundable)
	}
	return nil
}
