// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// DescribeDrift describes what differs for a reason that IsDrifted returned: the field, its
// value at launch and its current one. It returns an empty string for other reasons, and
// while that is unknown.
func (c *CloudProvider) DescribeDrift(ctx context.Context, claim *karpv1.NodeClaim, reason cloudprovider.DriftReason) string {
	class, err := c.nodeClass(ctx, claim.Spec.NodeClassRef.Name)
	if err != nil {
		return ""
	}
	switch reason {
	case v1alpha1.DriftNodeClass:
		return describeFields(claim, class)
	case v1alpha1.DriftMachine:
		return c.deps.VMs.MachineDrift(claim, class)
	case v1alpha1.DriftImage:
		return c.deps.VMs.ImageDrift(claim, class)
	case v1alpha1.DriftBootData:
		return fmt.Sprintf("the content of the boot data Secrets of ProxmoxNodeClass %s changed, its hash from %q to %q",
			class.Name, claim.Annotations[v1alpha1.AnnotationBootDataHash], class.Status.BootDataHash)
	case v1alpha1.DriftHostInMaintenance, v1alpha1.DriftHostOffline, v1alpha1.DriftHostExcluded:
		states := map[cloudprovider.DriftReason]string{
			v1alpha1.DriftHostInMaintenance: "in maintenance", v1alpha1.DriftHostOffline: "offline", v1alpha1.DriftHostExcluded: "excluded by settings",
		}
		if host, known := c.deps.VMs.HostOf(claim); known {
			return fmt.Sprintf("host %s in region %s is %s", host.Name, host.Region, states[reason])
		}
	}
	return ""
}

// describeFields lists the fields of a class that differ from those at launch.
func describeFields(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) string {
	hash := claim.Annotations[v1alpha1.AnnotationNodeClassHash]
	version := slices.IndexFunc(class.Status.Versions, func(v v1alpha1.NodeClassVersion) bool { return v.Hash == hash })
	if version < 0 {
		return fmt.Sprintf("a field of ProxmoxNodeClass %s changed; status.versions does not list the values at launch", class.Name)
	}
	launched, current := class.Status.Versions[version].Fields, class.HashedFields()
	fields := maps.Clone(launched)
	maps.Copy(fields, current)
	var changes []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if launched[field] != current[field] {
			changes = append(changes, fmt.Sprintf("spec.%s changed from %s to %s", field, cmp.Or(launched[field], "unset"), cmp.Or(current[field], "unset")))
		}
	}
	if len(changes) == 0 {
		return ""
	}
	return "ProxmoxNodeClass " + class.Name + ": " + strings.Join(changes, ", ")
}
