// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	podexplain "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// nominated matches the NodeClaim or Node in Karpenter's event Nominated of a pod.
var nominated = regexp.MustCompile(`(nodeclaim|node)/([a-z0-9.-]+)`)

// exceedsLimits is in core's error if all instance types exceed the limits of a NodePool.
const exceedsLimits = "exceed limits for nodepool"

func (e *explain) pod(ctx context.Context, key client.ObjectKey) error {
	pod := &corev1.Pod{}
	if err := e.kube.Get(ctx, key, pod); err != nil {
		return fmt.Errorf("reading pod %s: %w", key, err)
	}
	if pod.Spec.NodeName != "" {
		e.Verdict = fmt.Sprintf("pod %s is scheduled on node %s", key, pod.Spec.NodeName)
		return nil
	}
	history, err := e.eventsOf(ctx, pod)
	if err != nil {
		return err
	}
	e.add("pod "+key.String(), eventLines(history)...)
	wait, err := e.awaited(ctx, pod, history)
	if err != nil {
		return err
	}
	pools, err := e.poolsFor(ctx, pod, history)
	if err != nil {
		return err
	}
	e.Verdict = fmt.Sprintf("pod %s is waiting: %s", key, cmp.Or(wait, pools))
	return nil
}

// awaited returns what a pod waits for that is not a new Node; empty if it needs one.
func (e *explain) awaited(ctx context.Context, pod *corev1.Pod, history []corev1.Event) (string, error) {
	switch {
	case len(pod.Spec.SchedulingGates) > 0:
		return "it has scheduling gates: " + strings.Join(gateNames(pod), ", "), nil
	case podutils.IsOwnedByDaemonSet(pod):
		return "it belongs to a DaemonSet, for which Karpenter creates no nodes", nil
	case !podutils.FailedToSchedule(pod):
		return "the Kubernetes scheduler has not found it unschedulable yet", nil
	}
	for _, event := range slices.Backward(history) {
		if event.Reason == v1alpha1.EventNoHostFits {
			return "", nil // an earlier nomination is obsolete
		}
		match := nominated.FindStringSubmatch(event.Message)
		if event.Reason != events.Nominated || match == nil {
			continue
		}
		if match[1] == "node" {
			return "Karpenter expects it on node " + match[2], nil
		}
		claim := &karpv1.NodeClaim{}
		if err := e.kube.Get(ctx, client.ObjectKey{Name: match[2]}, claim); err != nil {
			return "", client.IgnoreNotFound(err)
		}
		state, _, err := e.describeClaim(ctx, claim)
		if err != nil || !claim.DeletionTimestamp.IsZero() {
			return "", err
		}
		return fmt.Sprintf("nodeclaim %s was created for it and %s", claim.Name, state), nil
	}
	return "", nil
}

func gateNames(pod *corev1.Pod) []string {
	var names []string
	for _, gate := range pod.Spec.SchedulingGates {
		names = append(names, gate.Name)
	}
	return names
}

// poolsFor describes the NodePools that a pod can use and returns why none creates a Node.
func (e *explain) poolsFor(ctx context.Context, pod *corev1.Pod, history []corev1.Event) (string, error) {
	pools := &karpv1.NodePoolList{}
	if err := e.kube.List(ctx, pools); err != nil {
		return "", fmt.Errorf("listing NodePools: %w", err)
	}
	var problems, unmatched []string
	usable := 0
	for i := range pools.Items {
		pool := &pools.Items[i]
		_, err := podexplain.NewClaim(pod, pool)
		switch {
		case errors.Is(err, podexplain.ErrOtherProvider):
			e.describeOtherPool(pool)
			continue
		case err != nil:
			unmatched = append(unmatched, fmt.Sprintf("nodepool %s: %v", pool.Name, err))
			continue
		}
		usable++
		problem, err := e.describePool(ctx, pool, pod, history)
		if err != nil {
			return "", err
		}
		if problem != "" {
			problems = append(problems, fmt.Sprintf("nodepool %s: %s", pool.Name, problem))
		}
	}
	switch {
	case len(pools.Items) == 0:
		return "there is no NodePool, so Karpenter creates no nodes", nil
	case usable == 0 && len(unmatched) == 0:
		return "no NodePool belongs to this provider", nil
	case usable == 0:
		return "no NodePool can be used for it: " + strings.Join(unmatched, "; "), nil
	case len(problems) == usable:
		return "no node can be created for it: " + strings.Join(problems, "; "), nil
	}
	return strings.Join(append([]string{lastRefusal(history)}, problems...), "; "), nil
}

// lastRefusal returns the last event that reports why no Node is created.
func lastRefusal(history []corev1.Event) string {
	for _, reason := range []string{v1alpha1.EventNoHostFits, events.FailedScheduling} {
		for _, event := range slices.Backward(history) {
			if event.Reason == reason {
				return event.Message
			}
		}
	}
	return "Karpenter has not tried to schedule it yet"
}

// pool explains a NodePool.
func (e *explain) pool(ctx context.Context, key client.ObjectKey) error {
	pool := &karpv1.NodePool{}
	if err := e.kube.Get(ctx, client.ObjectKey{Name: key.Name}, pool); err != nil {
		return fmt.Errorf("reading NodePool %s: %w", key.Name, err)
	}
	if ref := pool.Spec.Template.Spec.NodeClassRef; ref.Group != v1alpha1.Group {
		e.Verdict = fmt.Sprintf("nodepool %s belongs to another provider: its class is %s %s of group %s", pool.Name, ref.Kind, ref.Name, ref.Group)
		return nil
	}
	problem, err := e.describePool(ctx, pool, nil, nil)
	if err != nil {
		return err
	}
	e.Verdict = fmt.Sprintf("nodepool %s can create nodes", pool.Name)
	if problem != "" {
		e.Verdict = fmt.Sprintf("nodepool %s cannot create nodes: %s", pool.Name, problem)
	}
	return nil
}

// describeOtherPool adds a NodePool of another provider.
func (e *explain) describeOtherPool(pool *karpv1.NodePool) {
	ref := pool.Spec.Template.Spec.NodeClassRef
	e.add("nodepool "+pool.Name, fmt.Sprintf("not checked: it belongs to another provider, with class %s %s of group %s", ref.Kind, ref.Name, ref.Group))
}

// describePool adds a NodePool and its class, and returns why the pool cannot create a
// Node, for a pod if one is given; empty if no reason is known.
func (e *explain) describePool(ctx context.Context, pool *karpv1.NodePool, pod *corev1.Pod, history []corev1.Event) (string, error) {
	limit := limitProblem(pool, pod, history)
	var details []string
	for _, name := range slices.Sorted(maps.Keys(pool.Spec.Limits)) {
		details = append(details, "limit of "+fleet.LimitUsage(pool, name))
	}
	e.add("nodepool "+pool.Name, append(details, untrueConditions(pool.StatusConditions().List())...)...)
	class, problem, err := podexplain.ReadClass(ctx, e.kube, pool)
	if err != nil {
		return "", err
	}
	if class != nil {
		e.describeClass(class)
	}
	if problem != "" {
		return problem, nil
	}
	return limit, nil
}

// limitProblem returns which limits of a NodePool prevent another Node; empty if none is
// known to.
func limitProblem(pool *karpv1.NodePool, pod *corev1.Pod, history []corev1.Event) string {
	requests := corev1.ResourceList{}
	if pod != nil {
		requests = resources.RequestsForPods(pod)
	}
	requests[resources.Node] = resource.MustParse("1")
	var reached, all []string
	for _, name := range slices.Sorted(maps.Keys(pool.Spec.Limits)) {
		limit, used, request := pool.Spec.Limits[name], pool.Status.Resources[name], requests[name]
		left := limit.DeepCopy()
		left.Sub(used)
		all = append(all, fleet.LimitUsage(pool, name))
		switch {
		case left.Sign() <= 0:
			reached = append(reached, fleet.LimitUsage(pool, name))
		case left.Cmp(request) < 0:
			reached = append(reached, fmt.Sprintf("%s, the pod requests %s", fleet.LimitUsage(pool, name), request.String()))
		}
	}
	if len(reached) > 0 {
		return "its limit is reached: " + strings.Join(reached, "; ")
	}
	for _, event := range history {
		if event.Reason == events.FailedScheduling && strings.Contains(event.Message, exceedsLimits) && strings.Contains(event.Message, pool.Name) && len(all) > 0 {
			return "all instance types exceed its limit: " + strings.Join(all, "; ")
		}
	}
	return ""
}

// class explains a ProxmoxNodeClass.
func (e *explain) class(ctx context.Context, key client.ObjectKey) error {
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := e.kube.Get(ctx, client.ObjectKey{Name: key.Name}, class); err != nil {
		return fmt.Errorf("reading ProxmoxNodeClass %s: %w", key.Name, err)
	}
	e.describeClass(class)
	e.Verdict = fmt.Sprintf("proxmoxnodeclass %s is ready", class.Name)
	if ready := class.StatusConditions().Get(status.ConditionReady); !ready.IsTrue() {
		e.Verdict = fmt.Sprintf("proxmoxnodeclass %s is not ready: %s", class.Name, ready.Message)
	}
	return nil
}

// describeClass adds a class once.
func (e *explain) describeClass(class *v1alpha1.ProxmoxNodeClass) {
	usable := 0
	for _, zone := range class.Status.SelectedZones {
		if !slices.ContainsFunc(class.Status.UnusableZones, func(u v1alpha1.UnusableZone) bool { return strings.HasPrefix(zone, u.Zone+"/") }) {
			usable++
		}
	}
	object := fmt.Sprintf("proxmoxnodeclass %s, usable hosts: %d", class.Name, usable)
	if slices.ContainsFunc(e.Objects, func(o explainedObject) bool { return o.Object == object }) {
		return
	}
	details := untrueConditions(class.StatusConditions().List())
	e.add(object, append(details, unusableHosts(class.Status.UnusableZones)...)...)
}

// unusableHosts returns one line for each reason, in the order of the zones.
func unusableHosts(zones []v1alpha1.UnusableZone) []string {
	var lines []string
	for _, same := range group(zones, func(zone v1alpha1.UnusableZone) string { return zone.Reason }) {
		verb := "is"
		if len(same) > 1 {
			verb = "are"
		}
		lines = append(lines, fmt.Sprintf("%s %s not usable: %s", zoneNames(same), verb, same[0].Reason))
	}
	return lines
}

func zoneNames(zones []v1alpha1.UnusableZone) string {
	var names []string
	for _, zone := range zones {
		names = append(names, zone.Zone)
	}
	return strings.Join(names, ", ")
}
