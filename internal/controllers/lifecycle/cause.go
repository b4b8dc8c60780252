// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
)

// SetCause adds the messages of the false conditions to Ready. Without it, Ready only
// names the conditions, and users read it first.
func SetCause(object status.Object) {
	conditions := object.StatusConditions()
	ready := conditions.Root()
	if ready.IsTrue() {
		return
	}
	var causes []string
	for _, condition := range conditions.List() {
		if condition.IsFalse() && conditions.IsDependentCondition(condition.Type) && condition.Type != status.ConditionReady {
			causes = append(causes, condition.Type+": "+condition.Message)
		}
	}
	if len(causes) == 0 {
		return
	}
	slices.Sort(causes)
	ready.Message = strings.Join(causes, "; ")
	conditions.Set(*ready)
}
