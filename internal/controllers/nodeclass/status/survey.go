// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// check is one thing that a zone must have. Each has its own condition.
type check struct {
	condition string
	// reason of the condition when no zone is left.
	reason string
	// look finds what is wrong with a zone; nil means that nothing is.
	look func(zone) *finding
	// facts are what the verdict rests on: they are read again while it is bad.
	facts func(zone) []inventory.Fact
}

// checks in the order in which a Host must pass them. Privileges come first: what
// the token may not see looks as if it were not there. One more check is a function,
// a line here, and its condition in StatusConditions of the class.
var checks = []check{
	{v1alpha1.ConditionPrivilegesSufficient, v1alpha1.ReasonPrivilegesMissing, privileges, one(inventory.FactPermissions)},
	{v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, template, none},
	{v1alpha1.ConditionStorageReady, v1alpha1.ReasonStorageUnsuitable, storages, snippetFacts},
	{v1alpha1.ConditionNetworkReady, v1alpha1.ReasonBridgesNotFound, network, bridgeFacts},
	{v1alpha1.ConditionSharesReady, v1alpha1.ReasonDirectoriesNotFound, shares, shareFacts},
	{v1alpha1.ConditionSecurityGroupsReady, v1alpha1.ReasonSecurityGroupsNotFound, securityGroups, one(inventory.FactSecurityGroups)},
	{v1alpha1.ConditionTagsAllowed, v1alpha1.ReasonTagsForbidden, tags, one(inventory.FactOptions)},
	{v1alpha1.ConditionResourcePoolReady, v1alpha1.ReasonResourcePoolNotFound, pool, poolFacts},
	{v1alpha1.ConditionCPULayoutReady, v1alpha1.ReasonNoHostCanBind, cpuLayout, none},
}

func none(zone) []inventory.Fact { return nil }

func one(fact inventory.Fact) func(zone) []inventory.Fact {
	return func(zone) []inventory.Fact { return []inventory.Fact{fact} }
}

const (
	reasonNotRead = "ClustersNotRead"
	notRead       = "no Proxmox cluster was read yet"
)

// survey sorts the zones of a class: each goes through the checks until one finds
// something.
type survey struct {
	selected []string
	unusable []v1alpha1.UnusableZone
	// passed counts the zones that passed a check, by its condition.
	passed map[string]int
	// found lists what a check found.
	found map[string][]finding
	// doubts are the facts behind what was found, by region.
	doubts map[string][]inventory.Fact
}

func look(zones []zone) survey {
	s := survey{passed: map[string]int{}, found: map[string][]finding{}, doubts: map[string][]inventory.Fact{}}
	for _, z := range zones {
		if f := s.walk(z); f != nil {
			s.unusable = append(s.unusable, v1alpha1.UnusableZone{Zone: z.String(), Reason: f.text})
			continue
		}
		s.selected = append(s.selected, z.template.String())
	}
	return s
}

// walk takes a zone through the checks, and gives what stopped it.
func (s *survey) walk(z zone) *finding {
	for _, check := range checks {
		// What a Host that is away has is not to be seen now; that it is away,
		// offerings tell.
		if z.online() || check.condition == v1alpha1.ConditionInstanceTemplateReady {
			f := check.look(z)
			if f != nil {
				s.doubts[z.region] = append(s.doubts[z.region], check.facts(z)...)
			}
			if f != nil && !(f.unknown && z.before) {
				s.found[check.condition] = append(s.found[check.condition], *f)
				return f
			}
		}
		s.passed[check.condition]++
	}
	return nil
}

// tell writes the survey into the status. Regions that were not read keep what was
// found in them before.
func (s survey) tell(class *v1alpha1.ProxmoxNodeClass, unread []string) {
	kept := 0
	for _, region := range unread {
		before := inRegion(class.Status.SelectedZones, region, func(z string) string { return z })
		kept += len(before)
		s.selected = append(s.selected, before...)
		s.unusable = append(s.unusable, inRegion(class.Status.UnusableZones, region, func(z v1alpha1.UnusableZone) string { return z.Zone })...)
	}
	slices.Sort(s.selected)
	class.Status.SelectedZones, class.Status.UnusableZones = s.selected, s.unusable
	class.Status.Resources = corev1.ResourceList{v1alpha1.ResourceZones: *resource.NewQuantity(int64(len(s.selected)), resource.DecimalSI)}
	conditions := class.StatusConditions()
	stopped := ""
	for _, check := range checks {
		found := s.found[check.condition]
		switch {
		case s.passed[check.condition]+kept > 0:
			conditions.SetTrue(check.condition)
		case len(found) == 0 && stopped != "":
			conditions.SetUnknownWithReason(check.condition, "NotChecked", "is looked at once "+stopped+" is true")
		case len(found) == 0 && len(unread) > 0:
			conditions.SetUnknownWithReason(check.condition, reasonNotRead, notRead)
		case len(found) == 0:
			conditions.SetUnknownWithReason(check.condition, "NoHosts", "no host is known in the class's regions")
		case !slices.ContainsFunc(found, func(f finding) bool { return !f.unknown }):
			conditions.SetUnknownWithReason(check.condition, reasonNotRead, words(found))
			stopped = check.condition
		default:
			conditions.SetFalse(check.condition, reasonOf(check, found), words(found))
			stopped = check.condition
		}
	}
}

// reasonOf is the check's own reason, unless all that was found has the same other one.
func reasonOf(c check, found []finding) string {
	for _, f := range found {
		if f.reason != found[0].reason {
			return c.reason
		}
	}
	return cmp.Or(found[0].reason, c.reason)
}

// mostZones is how many zones of the same kind of trouble a message names.
const mostZones = 5

// words puts findings into one line, those with the same text together.
func words(found []finding) string {
	var texts []string
	where := map[string][]string{}
	for _, f := range found {
		if _, known := where[f.text]; !known {
			texts = append(texts, f.text)
			where[f.text] = nil
		}
		if f.where != "" && !slices.Contains(where[f.text], f.where) {
			where[f.text] = append(where[f.text], f.where)
		}
	}
	for i, text := range texts {
		places := where[text]
		if more := len(places) - mostZones; more > 0 {
			places = append(places[:mostZones:mostZones], fmt.Sprintf("%d more", more))
		}
		if len(places) > 0 {
			texts[i] = strings.Join(places, ", ") + ": " + text
		}
	}
	return strings.Join(texts, "; ")
}

// inRegion keeps the zones of one region.
func inRegion[Z any](zones []Z, region string, name func(Z) string) []Z {
	var out []Z
	for _, zone := range zones {
		if strings.HasPrefix(name(zone), region+"/") {
			out = append(out, zone)
		}
	}
	return out
}
