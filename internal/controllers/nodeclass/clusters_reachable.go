// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// setClustersReachable sets ClustersReachable. One reachable Cluster is enough; the
// message lists the others. A single poll that failed is ignored: core would delete all Claims
// that are being created.
func (c *Checker) setClustersReachable(class *v1alpha1.ProxmoxNodeClass, view inventory.View) {
	conditions := class.StatusConditions()
	known := c.inventory.Regions()
	if class.Spec.Region != "" && !slices.Contains(known, class.Spec.Region) {
		conditions.SetFalse(v1alpha1.ConditionClustersReachable, v1alpha1.ReasonRegionNotFound,
			fmt.Sprintf("spec.region %q is not in the cloud config, which has %s", class.Spec.Region, strings.Join(known, ", ")))
		return
	}
	var failures, unread []string
	answering, reason := 0, v1alpha1.ReasonNoQuorum
	for _, region := range c.regions(class) {
		switch failure := view.Failures[region]; {
		case failure != nil && (view.Snapshots[region] == nil || view.Unavailable(region) != nil):
			failures = append(failures, describeFailure(region, failure))
			if !errors.Is(failure, proxmox.ErrNoQuorum) {
				reason = v1alpha1.ReasonClustersUnreachable
			}
		case view.Snapshots[region] == nil:
			unread = append(unread, region)
		default:
			answering++
		}
	}
	switch {
	case answering > 0:
		conditions.SetTrueWithReason(v1alpha1.ConditionClustersReachable, v1alpha1.ConditionClustersReachable, strings.Join(failures, "; "))
	case len(unread) > 0 && conditions.Get(v1alpha1.ConditionClustersReachable).IsTrue():
		// The condition was set before this controller started; the first poll updates it.
	case len(unread) > 0:
		setUnknown(conditions, c.deps.Clock.Now(), v1alpha1.ConditionClustersReachable, v1alpha1.ReasonClustersNotPolled, notReadMessage(unread))
	default:
		conditions.SetFalse(v1alpha1.ConditionClustersReachable, reason, strings.Join(failures, "; "))
	}
}

// describeFailure describes since when and why a Cluster is unreachable, and what to do.
// It omits the number of attempts, which would change the condition at each poll.
func describeFailure(region string, failure error) string {
	since := ""
	if poll, ok := errors.AsType[*inventory.PollError](failure); ok {
		since, failure = " since "+poll.Since.UTC().Format(time.RFC3339), poll.Err
	}
	return fmt.Sprintf("region %s%s: %v", region, since, proxmox.Explain(failure))
}
