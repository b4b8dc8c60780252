// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// checkHighAvailability checks whether the Cluster's release supports spec.highAvailability,
// and whether the HA group and rules exist and contain the Host: HA would move a VM that is
// on another Host.
func checkHighAvailability(z zone) *problem {
	ha := z.class.Spec.HighAvailability
	if ha == nil {
		return nil
	}
	release := z.snapshot.Version
	switch hasRules := release.AtLeast(9, 0); {
	case hasRules && ha.Group != "":
		return z.regionProblem("spec.highAvailability.group %q needs Proxmox VE 8, this is %s, in which rules replaced HA groups; use spec.highAvailability.rules, or set spec.region to an older cluster", ha.Group, release.Release)
	case !hasRules && len(ha.Rules) > 0:
		return z.regionProblem("spec.highAvailability.rules %s needs Proxmox VE 9.0 or newer, this is %s; use spec.highAvailability.group, or set spec.region to a newer cluster", strings.Join(ha.Rules, ", "), release.Release)
	case !hasRules && ha.SeparateHosts:
		return z.regionProblem("spec.highAvailability.separateHosts true needs Proxmox VE 9.0 or newer, this is %s; upgrade it, remove the field, or set spec.region to a newer cluster", release.Release)
	case ha.Group != "":
		return checkHAGroup(z, ha.Group)
	}
	return checkHARules(z, ha.Rules)
}

func checkHAGroup(z zone, name string) *problem {
	known := z.facts(poll.FactHAGroups).HAGroups
	if known == nil {
		return z.unreadHA()
	}
	group, exists := known[name]
	switch {
	case !exists:
		return z.regionProblem("spec.highAvailability.group: HA group %q does not exist; the cluster has %s", name, listNames(known))
	case !slices.Contains(group.Hosts, z.host):
		return z.hostProblem("spec.highAvailability.group: HA group %q has the hosts %s, but not this one", name, strings.Join(group.Hosts, ", "))
	}
	return nil
}

func checkHARules(z zone, names []string) *problem {
	if len(names) == 0 {
		return nil
	}
	known := z.facts(poll.FactHARules).HARules
	if known == nil {
		return z.unreadHA()
	}
	for n, name := range names {
		rule, exists := known[name]
		switch {
		case !exists:
			return z.regionProblem("spec.highAvailability.rules[%d]: HA rule %q does not exist; the cluster has %s", n, name, listNames(known))
		case rule.Type == proxmox.HANodeAffinity && !rule.Disabled && !slices.Contains(rule.Hosts, z.host):
			return z.hostProblem("spec.highAvailability.rules[%d]: HA rule %q has the hosts %s, but not this one", n, name, strings.Join(rule.Hosts, ", "))
		}
	}
	return nil
}

// unreadHA is the problem until the groups or rules were read.
func (z zone) unreadHA() *problem {
	p := z.regionProblem("the HA groups and rules have not been read yet")
	p.unknown = true
	return p
}

// listNames lists what exists.
func listNames[V any](known map[string]V) string {
	if len(known) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(known)), ", ")
}
