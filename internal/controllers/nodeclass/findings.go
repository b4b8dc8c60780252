// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
)

// Findings are all problems of a NodeClass, also those of Hosts that other conditions
// exclude, and of some Hosts while others can be used.
type Findings struct {
	// Problems are the messages by condition, each once with its Hosts. Conditions that were
	// checked on no Host are missing.
	Problems map[string][]string
	// Required are the privileges that the VMs of the class require, by region.
	Required map[string][]privileges.Required
}

// Find returns the problems of a NodeClass on the Hosts that skip does not exclude. Unlike
// Check it does not change the status. Facts that the inventory reads on demand are missing
// at the first call; the next poll reads them. Find returns an error if an object cannot be
// read.
func (c *Checker) Find(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, skip func(region, host string) bool) (Findings, error) {
	source, err := c.readTemplateSource(ctx, class.Spec.InstanceTemplateRef)
	if err != nil {
		return Findings{}, err
	}
	found := Findings{Problems: map[string][]string{}, Required: map[string][]privileges.Required{}}
	problems := map[string][]problem{}
	zones, _ := c.newZones(class, c.inventory.View(), source)
	c.invalidateFacts(zones)
	for _, z := range zones {
		if !z.isOnline() || skip(z.region, z.host) {
			continue
		}
		found.Required[z.region] = append(found.Required[z.region], privileges.ForVM(z.vm())...)
		for condition, p := range z.findProblems() {
			problems[condition] = append(problems[condition], p...)
		}
	}
	for condition, list := range problems {
		found.Problems[condition] = listProblems(list)
	}
	return found, nil
}

// findProblems runs all checks on a zone and returns their problems by condition. Missing
// privileges are in Findings.Required. If objects are invisible because of them, they seem
// not to exist, so the other checks do not run. Nor do they if the template is unsuitable.
func (z zone) findProblems() map[string][]problem {
	problems := map[string][]problem{}
	for _, check := range checks {
		problems[check.condition] = nil
		p := check.run(z)
		if p != nil && len(p.missing) > 0 {
			if p.account.HidesObjects(p.missing) {
				return problems
			}
			p = checkRootLogin(z)
		}
		if p != nil {
			problems[check.condition] = []problem{*p}
		}
		if p != nil && check.condition == v1alpha1.ConditionInstanceTemplateReady {
			return problems
		}
	}
	return problems
}

// IsHostCondition reports whether a condition is about Hosts.
func IsHostCondition(condition string) bool {
	return slices.ContainsFunc(checks, func(c check) bool { return c.condition == condition })
}
