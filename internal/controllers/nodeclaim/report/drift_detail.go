// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// describe describes what differs between a Claim and its NodePool for a reason of core. It
// returns an empty string for other reasons.
func describe(claim *karpv1.NodeClaim, pool *karpv1.NodePool, reason cloudprovider.DriftReason) string {
	switch reason {
	case disruption.NodePoolDrifted:
		return cmp.Or(describeTemplate(claim, pool), fmt.Sprintf("NodePool %s: a label or annotation was removed from spec.template.metadata", pool.Name))
	case disruption.RequirementsDrifted:
		return describeRequirements(claim, pool)
	case disruption.InstanceTypeNotFound:
		return fmt.Sprintf("NodePool %s: instance type %q is not available on host %q any more",
			pool.Name, claim.Labels[corev1.LabelInstanceTypeStable], claim.Labels[corev1.LabelTopologyZone])
	}
	return ""
}

// describeTemplate lists the fields of spec.template that differ from the Claim, which core
// created from it. A label or annotation that was removed cannot be found: the Claim has
// many from other sources.
func describeTemplate(claim *karpv1.NodeClaim, pool *karpv1.NodePool) string {
	template := pool.Spec.Template
	var changes []string
	add := func(field, before, now string) {
		if before != now {
			changes = append(changes, fmt.Sprintf("spec.template.%s changed from %s to %s", field, cmp.Or(before, "unset"), cmp.Or(now, "unset")))
		}
	}
	for _, metadata := range []struct {
		field       string
		before, now map[string]string
	}{{"labels", claim.Labels, template.Labels}, {"annotations", claim.Annotations, template.Annotations}} {
		for key, value := range metadata.now {
			add("metadata."+metadata.field+"["+key+"]", metadata.before[key], value)
		}
	}
	slices.Sort(changes)
	add("spec.taints", taints(claim.Spec.Taints), taints(template.Spec.Taints))
	add("spec.startupTaints", taints(claim.Spec.StartupTaints), taints(template.Spec.StartupTaints))
	add("spec.expireAfter", duration(claim.Spec.ExpireAfter), duration(template.Spec.ExpireAfter))
	add("spec.nodeClassRef", classRef(claim.Spec.NodeClassRef), classRef(template.Spec.NodeClassRef))
	add("spec.terminationGracePeriod", gracePeriod(claim.Spec.TerminationGracePeriod), gracePeriod(template.Spec.TerminationGracePeriod))
	return list(pool, changes)
}

// describeRequirements lists the requirements of a NodePool that the labels of a Claim do
// not meet.
func describeRequirements(claim *karpv1.NodeClaim, pool *karpv1.NodePool) string {
	labels := scheduling.NewLabelRequirements(claim.Labels)
	var changes []string
	for _, requirement := range pool.Spec.Template.Spec.Requirements {
		if labels.Compatible(scheduling.NewNodeSelectorRequirementsWithMinValues(requirement)) != nil {
			changes = append(changes, fmt.Sprintf("spec.template.spec.requirements[%s] is %s %v now, and the Node has %s",
				requirement.Key, requirement.Operator, requirement.Values, cmp.Or(claim.Labels[requirement.Key], "no such label")))
		}
	}
	return list(pool, changes)
}

// list returns the changes of a NodePool as text; empty if there are none.
func list(pool *karpv1.NodePool, changes []string) string {
	if len(changes) == 0 {
		return ""
	}
	return "NodePool " + pool.Name + ": " + strings.Join(changes, ", ")
}

func taints(list []corev1.Taint) string {
	out := make([]string, 0, len(list))
	for _, taint := range list {
		out = append(out, taint.ToString())
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func duration(d karpv1.NillableDuration) string {
	if d.Duration == nil {
		return "Never"
	}
	return d.String()
}

func gracePeriod(d *metav1.Duration) string {
	if d == nil {
		return ""
	}
	return d.Duration.String()
}

func classRef(ref *karpv1.NodeClassReference) string {
	if ref == nil {
		return ""
	}
	return ref.Kind + " " + ref.Name
}
