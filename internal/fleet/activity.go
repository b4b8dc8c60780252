// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// maxEvents limits the events of a Map.
const maxEvents = 50

// Event is an event of Karpenter.
type Event struct {
	Time time.Time `json:"time"`
	// Object is its kind and name, for example nodeclaim/default-x2x8k.
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"`
	Count   int32  `json:"count"`
}

// EventTime returns when an event happened last.
func EventTime(event corev1.Event) time.Time {
	switch {
	case event.Series != nil:
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	}
	return event.CreationTimestamp.Time
}

// ignoredEvents repeat for each Node while nothing happens.
var ignoredEvents = []string{events.Unconsolidatable, events.DisruptionBlocked}

// recentEvents returns the last events, the newest first. It skips those that name no
// object, as core emits them after a finalizer is removed.
func recentEvents(all []corev1.Event) []Event {
	out := []Event{}
	for _, event := range all {
		if slices.Contains(ignoredEvents, event.Reason) || event.InvolvedObject.Name == "" {
			continue
		}
		out = append(out, Event{
			Time: EventTime(event), Object: strings.ToLower(event.InvolvedObject.Kind) + "/" + event.InvolvedObject.Name,
			Reason: event.Reason, Message: event.Message, Warning: event.Type == corev1.EventTypeWarning, Count: max(event.Count, 1),
		})
	}
	slices.SortStableFunc(out, func(a, b Event) int { return b.Time.Compare(a.Time) })
	return out[:min(len(out), maxEvents)]
}

// activity describes what Karpenter is doing, one line for each VM that is launched,
// disrupted, deleted or orphaned.
func activity(now time.Time, vms []VM) []string {
	out := []string{}
	for _, vm := range vms {
		age := now.Sub(vm.Created).Round(time.Second)
		switch {
		case vm.Phase == Orphaned:
			out = append(out, fmt.Sprintf("VM %d on %s/%s is orphaned: %s", vm.VMID, vm.Region, vm.Host, vm.Reason))
		case vm.Phase == Deleting:
			out = append(out, fmt.Sprintf("deleting nodeclaim %s: %s", vm.Claim, vm.Reason))
		case vm.Phase.IsLaunching():
			where := ""
			if vm.Host != "" {
				where = " on " + vm.Region + "/" + vm.Host
			}
			out = append(out, fmt.Sprintf("launching nodeclaim %s for nodepool %s%s: %s, for %s", vm.Claim, vm.NodePool, where, vm.Phase, age))
		case vm.Reason != "" && vm.Phase != Stopped:
			out = append(out, fmt.Sprintf("replacing nodeclaim %s: %s", vm.Claim, vm.Reason))
		}
	}
	return out
}

func templates(objects Objects) []Template {
	out := []Template{}
	for i := range objects.Templates {
		t := &objects.Templates[i]
		out = append(out, Template{Kind: "ProxmoxTemplate", Name: t.Name, Zones: t.Status.Zones,
			Problem: firstProblem(t.StatusConditions().Get(v1alpha1.ConditionTemplateReady), t.StatusConditions().Get(v1alpha1.ConditionTemplateUpToDate))})
	}
	for i := range objects.UnmanagedTemplates {
		t := &objects.UnmanagedTemplates[i]
		out = append(out, Template{Kind: "ProxmoxUnmanagedTemplate", Name: t.Name, Zones: t.Status.Zones,
			Problem: firstProblem(t.StatusConditions().Get(v1alpha1.ConditionTemplateReady))})
	}
	return out
}

// firstProblem returns the message of the first condition that exists and is not true.
func firstProblem(conditions ...*status.Condition) string {
	for _, c := range conditions {
		if c != nil && !c.IsTrue() {
			return c.Message
		}
	}
	return ""
}

// problems describes the NodeClasses and NodePools that are not ready.
func problems(objects Objects) []string {
	out := []string{}
	for i := range objects.NodeClasses {
		if ready := objects.NodeClasses[i].StatusConditions().Root(); ready != nil && !ready.IsTrue() {
			out = append(out, fmt.Sprintf("nodeclass %s is not ready: %s", objects.NodeClasses[i].Name, ready.Message))
		}
	}
	for i := range objects.NodePools {
		pool := &objects.NodePools[i]
		ref := pool.Spec.Template.Spec.NodeClassRef
		if ref == nil || ref.Group != v1alpha1.Group {
			continue
		}
		if ready := pool.StatusConditions().Root(); ready != nil && ready.IsFalse() {
			out = append(out, fmt.Sprintf("nodepool %s is not ready: %s", pool.Name, ready.Message))
		}
		if reached := reachedLimits(pool); len(reached) > 0 {
			out = append(out, fmt.Sprintf("nodepool %s has reached its limit: %s", pool.Name, strings.Join(reached, "; ")))
		}
	}
	return out
}

// reachedLimits describes the limits of a NodePool that allow no other Node; none for a
// static NodePool, whose limit usually equals its replicas.
func reachedLimits(pool *karpv1.NodePool) []string {
	var reached []string
	for _, name := range slices.Sorted(maps.Keys(pool.Spec.Limits)) {
		limit, used := pool.Spec.Limits[name], pool.Status.Resources[name]
		if pool.Spec.Replicas == nil && used.Cmp(limit) >= 0 {
			reached = append(reached, LimitUsage(pool, name))
		}
	}
	return reached
}

// LimitUsage describes how much of a limit of a NodePool is used.
func LimitUsage(pool *karpv1.NodePool, name corev1.ResourceName) string {
	limit, used := pool.Spec.Limits[name], pool.Status.Resources[name]
	return fmt.Sprintf("%s: %s of %s used", name, formatQuantity(used), formatQuantity(limit))
}

// formatQuantity formats a quantity. Of memory and disks, it returns GiB with one digit:
// sums of Nodes are in KiB otherwise.
func formatQuantity(q resource.Quantity) string {
	const gib = 1 << 30
	if q.Format != resource.BinarySI || q.Value() < gib {
		return q.String()
	}
	return strings.TrimSuffix(strconv.FormatFloat(q.AsApproximateFloat64()/gib, 'f', 1, 64), ".0") + "Gi"
}
