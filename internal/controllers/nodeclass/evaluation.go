// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
)

// notReadMessage names the regions that were not read since the start.
func notReadMessage(regions []string) string {
	return "not read yet, the controller's log contains the cause: " + strings.Join(regions, ", ")
}

// evaluation is the result of running the checks on all zones of a NodeClass. The checks
// of a zone stop at the first problem.
type evaluation struct {
	selected []string
	unusable []v1alpha1.UnusableZone
	// passed is the number of zones that passed a check, by condition.
	passed map[string]int
	// problems of each check, by condition.
	problems map[string][]problem
	// staleFacts are the facts that failed checks have read, by region.
	staleFacts map[string][]poll.Fact
	// lacking are the missing privileges.
	lacking []lackedPrivilege
}

// evaluate runs the checks on all zones.
func evaluate(zones []zone) evaluation {
	e := evaluation{passed: map[string]int{}, problems: map[string][]problem{}, staleFacts: map[string][]poll.Fact{}}
	for _, z := range zones {
		if p := e.evaluateZone(z); p != nil {
			e.unusable = append(e.unusable, v1alpha1.UnusableZone{Zone: z.String(), Reason: p.message})
			continue
		}
		e.selected = append(e.selected, z.template.String())
		if z.outOfService != "" {
			e.unusable = append(e.unusable, z.outOfServiceZone())
		}
	}
	mergePrivileges(e.problems[v1alpha1.ConditionPrivilegesSufficient])
	return e
}

// evaluateZone runs the checks on a zone and returns the first problem.
func (e *evaluation) evaluateZone(z zone) *problem {
	for _, check := range checks {
		// The resources of an offline Host are not visible; offerings report that it
		// is offline.
		if z.isOnline() || check.condition == v1alpha1.ConditionInstanceTemplateReady {
			*z.read = nil
			p := check.run(z)
			if p != nil {
				e.staleFacts[z.region] = append(e.staleFacts[z.region], *z.read...)
				for _, privilege := range p.missing {
					e.lacking = append(e.lacking, lackedPrivilege{z.region, privilege})
				}
			}
			if p != nil && !(p.unknown && z.wasSelected) {
				e.problems[check.condition] = append(e.problems[check.condition], *p)
				return p
			}
		}
		e.passed[check.condition]++
	}
	return nil
}

// setConditions writes the evaluation to the status. Regions that were not read keep
// their zones.
func (e evaluation) setConditions(class *v1alpha1.ProxmoxNodeClass, unread []string, now time.Time) {
	kept := 0
	for _, region := range unread {
		before := filterRegion(class.Status.SelectedZones, region, func(z string) string { return z })
		kept += len(before)
		e.selected = append(e.selected, before...)
		e.unusable = append(e.unusable, filterRegion(class.Status.UnusableZones, region, func(z v1alpha1.UnusableZone) string { return z.Zone })...)
	}
	slices.Sort(e.selected)
	class.Status.SelectedZones, class.Status.UnusableZones = e.selected, e.unusable
	class.Status.Resources = corev1.ResourceList{v1alpha1.ResourceZones: *resource.NewQuantity(e.countUsable(), resource.DecimalSI)}
	conditions := class.StatusConditions()
	failed := ""
	for _, check := range checks {
		problems := e.problems[check.condition]
		switch {
		case e.passed[check.condition]+kept > 0:
			conditions.SetTrue(check.condition)
		case len(problems) == 0 && failed != "":
			conditions.SetUnknownWithReason(check.condition, v1alpha1.ReasonNotChecked, "not checked until condition "+failed+" is true")
		case len(problems) == 0 && len(unread) > 0:
			setUnknown(conditions, now, check.condition, v1alpha1.ReasonClustersNotPolled, notReadMessage(unread))
		case len(problems) == 0:
			setUnknown(conditions, now, check.condition, v1alpha1.ReasonNoHosts, "no host is known in the regions of the NodeClass")
		case !slices.ContainsFunc(problems, func(p problem) bool { return !p.unknown }):
			setUnknown(conditions, now, check.condition, v1alpha1.ReasonClustersNotPolled, joinProblems(problems))
			failed = check.condition
		default:
			conditions.SetFalse(check.condition, conditionReason(check, problems), joinProblems(problems))
			failed = check.condition
		}
	}
}

// outOfServiceZone returns the entry of a Host that is out of service. After a restart of
// the controller the inventory does not know the time any more, so the stored one is kept.
func (z zone) outOfServiceZone() v1alpha1.UnusableZone {
	entry := v1alpha1.UnusableZone{Zone: z.String(), Reason: z.outOfService}
	for _, stored := range z.class.Status.UnusableZones {
		if stored.Zone == entry.Zone && stored.Reason == entry.Reason && stored.Since != nil {
			entry.Since = stored.Since
			return entry
		}
	}
	if !z.outOfServiceSince.IsZero() {
		entry.Since = new(metav1.NewTime(z.outOfServiceSince.Truncate(time.Second)))
	}
	return entry
}

// countUsable returns the number of selected zones that are in service.
func (e evaluation) countUsable() int64 {
	unusable := map[string]bool{}
	for _, zone := range e.unusable {
		unusable[zone.Zone] = true
	}
	usable := int64(0)
	for _, entry := range e.selected {
		if zone, err := v1alpha1.ParseTemplateZone(entry); err == nil && !unusable[zone.Zone()] {
			usable++
		}
	}
	return usable
}

// conditionReason returns the check's reason, unless all problems have the same other
// one.
func conditionReason(c check, problems []problem) string {
	for _, p := range problems {
		if p.reason != problems[0].reason {
			return c.reason
		}
	}
	return cmp.Or(problems[0].reason, c.reason)
}

// maxZonesInMessage is how many zones with the same problem a message names.
const maxZonesInMessage = 5

// joinProblems joins the messages of problems. Zones with the same message are listed
// together.
func joinProblems(problems []problem) string { return strings.Join(listProblems(problems), "; ") }

// listProblems returns the messages of problems, each once with its zones.
func listProblems(problems []problem) []string {
	var messages []string
	scopes := map[string][]string{}
	for _, p := range problems {
		if _, known := scopes[p.message]; !known {
			messages = append(messages, p.message)
			scopes[p.message] = nil
		}
		if p.scope != "" && !slices.Contains(scopes[p.message], p.scope) {
			scopes[p.message] = append(scopes[p.message], p.scope)
		}
	}
	for i, message := range messages {
		zones := scopes[message]
		if more := len(zones) - maxZonesInMessage; more > 0 {
			zones = append(zones[:maxZonesInMessage:maxZonesInMessage], fmt.Sprintf("%d more", more))
		}
		if len(zones) > 0 {
			messages[i] = strings.Join(zones, ", ") + ": " + message
		}
	}
	return messages
}

// filterRegion returns the zones of one region.
func filterRegion[Z any](zones []Z, region string, name func(Z) string) []Z {
	var out []Z
	for _, zone := range zones {
		if strings.HasPrefix(name(zone), region+"/") {
			out = append(out, zone)
		}
	}
	return out
}
