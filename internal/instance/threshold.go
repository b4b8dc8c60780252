// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

// SafetyThreshold is the fraction of all VMs above which none is deleted or replaced
// automatically: so many at the same time have a common cause that deleting them does
// not fix, such as a restored etcd, the wrong cluster or a failed storage.
type SafetyThreshold float64

// alwaysAllowed is the number of VMs that may be deleted regardless of the fraction.
const alwaysAllowed = 3

// IsExceeded reports whether too many VMs are affected.
func (t SafetyThreshold) IsExceeded(affected, all int) bool {
	return affected > alwaysAllowed && float64(affected) > float64(t)*float64(all)
}
