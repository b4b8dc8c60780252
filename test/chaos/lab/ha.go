// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// haViolations returns VMs that are not in HA, and resources and rules of VMs that do not exist.
func (e *Env) haViolations(want map[int]*karpv1.NodeClaim) (violations []string) {
	if !e.ha {
		return nil
	}
	found := e.Sim.HAResources()
	for vmid := range found {
		if want[vmid] == nil {
			violations = append(violations, fmt.Sprintf("HA resource of VM %d leaked", vmid))
		}
	}
	var all []string
	for vmid, claim := range want {
		all = append(all, proxmox.HAResourceID(vmid))
		if found[vmid]["state"] != "started" {
			violations = append(violations, fmt.Sprintf("VM %d of claim %s is not in HA: %v", vmid, claim.Name, found[vmid]))
		}
	}
	rules := e.Sim.HARules()
	if e.Class.Spec.HighAvailability.SeparateHosts && len(want) > 1 && len(rules) != 1 {
		violations = append(violations, fmt.Sprintf("%d VMs in HA have the rules %v, want one", len(want), rules))
	}
	for name, resources := range rules {
		isStale := slices.ContainsFunc(resources, func(id string) bool { return !slices.Contains(all, id) })
		if isStale || (len(all) != 1 && len(resources) != len(all)) {
			violations = append(violations, fmt.Sprintf("HA rule %s has the resources %v, want %v", name, resources, all))
		}
	}
	return violations
}
