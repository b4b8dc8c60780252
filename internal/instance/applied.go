// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// NewApplied returns what a launch writes to its VM from the class. If the class changed since the
// plan, the hash is empty, so the VM is updated in place after the launch.
func NewApplied(class *v1alpha1.ProxmoxNodeClass, in Intent) ownership.Applied {
	applied := ownership.Applied{Pool: in.ResourcePool, HA: encodeHA(in.HA), Groups: hashGroups(class.Spec.SecurityGroups), DiskBytes: in.DiskBytes}
	if in.ResourcePool == class.Spec.ResourcePool && string(encodeHA(class.Spec.HighAvailability)) == string(applied.HA) {
		applied.Hash = class.InPlaceHash()
	}
	if in.HA != nil {
		applied = applied.WithPending(ownership.PartHA)
	}
	return applied
}

// AppliedHA returns the options with which a VM was added to HA; nil if it was not, or if that is
// unknown.
func AppliedHA(mark ownership.Mark) *v1alpha1.HighAvailability {
	var ha *v1alpha1.HighAvailability
	if mark.Applied == nil || json.Unmarshal(mark.Applied.HA, &ha) != nil {
		return nil
	}
	return ha
}

func encodeHA(ha *v1alpha1.HighAvailability) json.RawMessage {
	if ha == nil {
		return nil
	}
	raw, err := json.Marshal(ha)
	if err != nil {
		panic(err) // strings, numbers and booleans always marshal
	}
	return raw
}

// hashGroups returns a hash of security groups. Their order has no meaning.
func hashGroups(groups []v1alpha1.SecurityGroup) string {
	sorted := slices.SortedFunc(slices.Values(groups), func(a, b v1alpha1.SecurityGroup) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Name, b.Name))
	})
	sum := fnv.New64a()
	for _, group := range slices.Compact(sorted) {
		_, _ = fmt.Fprintf(sum, "%s=%s ", group.Interface, group.Name)
	}
	return fmt.Sprintf("%x", sum.Sum64())
}

// HasGroups reports whether security groups are those that were last written to a VM.
func HasGroups(applied ownership.Applied, groups []v1alpha1.SecurityGroup) bool {
	return applied.Groups == hashGroups(groups) && !applied.IsPending(ownership.PartGroups)
}
