// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"time"

	"github.com/awslabs/operatorpkg/status"
)

// unknownTimeout is how long a condition may be unknown. Core retries the Claims of a
// NodeClass whose readiness is unknown, and provisions nothing for any NodePool meanwhile.
const unknownTimeout = 30 * time.Second

// setUnknown sets a condition to unknown, and to false once it was unknown for the
// timeout.
func setUnknown(conditions status.ConditionSet, now time.Time, condition, reason, message string) {
	before := conditions.Get(condition)
	// Before the first check, the reason is another one.
	if before.Reason == reason && !before.LastTransitionTime.IsZero() &&
		(before.IsFalse() || now.Sub(before.LastTransitionTime.Time) >= unknownTimeout) {
		conditions.SetFalse(condition, reason, message)
		return
	}
	conditions.SetUnknownWithReason(condition, reason, message)
}
