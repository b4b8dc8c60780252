// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	corescheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/daemonset"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	podexplain "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
)

// replaceStatic replaces a drifted Node of a static NodePool as core does, whether its pods
// fit or not: it launches the replacement, then deletes the Node. At limits.nodes it deletes
// the Node first if the feature gate TerminateFirstDrift is on. Pods that fit on the
// replacement stay there.
func (p *planner) replaceStatic(vm VM, pool *karpv1.NodePool) error {
	pods, err := p.podsOn(vm.claim.Status.NodeName)
	if err != nil {
		return err
	}
	terminateFirst := p.isAtNodeLimit(pool)
	if terminateFirst {
		if !coreoptions.FromContext(p.ctx).FeatureGates.TerminateFirstDrift || !pool.StatusConditions().Root().IsTrue() {
			p.noteNotReplaced(vm, fmt.Sprintf("static nodepool %s is at limits.nodes", pool.Name))
			return nil
		}
		if err := p.deleteVM(vm); err != nil {
			return err
		}
	}
	replacement, err := p.launchStatic(pool)
	switch {
	case err != nil:
		return err
	case replacement == "" && terminateFirst:
		p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("the VM that replaces nodeclaim %s waits for capacity: %s", vm.NodeClaim, p.refusal(pool)))
		return nil
	case replacement == "":
		p.noteNotReplaced(vm, "its replacement would wait for capacity: "+p.refusal(pool))
		return nil
	}
	if !terminateFirst {
		if err := p.deleteVM(vm); err != nil {
			return err
		}
	}
	return p.bindFitting(replacement, pods)
}

// isAtNodeLimit reports whether a static NodePool may have no more NodeClaims. Those that wait
// for capacity count, although they are not in the cluster.
func (p *planner) isAtNodeLimit(pool *karpv1.NodePool) bool {
	limit, limited := pool.Spec.Limits[resources.Node]
	active, deleting, _ := p.cluster.NodePoolState.GetNodeCount(pool.Name)
	return limited && max(int64(active+deleting), *pool.Spec.Replicas) >= limit.Value()
}

// launchStatic adds a Node to a static NodePool and returns its name; empty if there is no
// capacity for it.
func (s *simulation) launchStatic(pool *karpv1.NodePool) (string, error) {
	claim, err := s.launch(&scheduling.NodeClaim{NodeClaimTemplate: *scheduling.NewNodeClaimTemplate(pool)})
	if err != nil || claim == nil {
		return "", err
	}
	if len(claim.Status.Capacity) == 0 { // it waits for capacity
		s.vms.Planner.Release(string(claim.UID))
		return "", s.evict("", claim)
	}
	return claim.Name, s.join(claim)
}

// refusal returns why a static NodePool gets no Node.
func (p *planner) refusal(pool *karpv1.NodePool) string {
	class, problem, err := podexplain.ReadClass(p.ctx, p.kube, pool)
	if err == nil && problem == "" {
		err = p.vms.Planner.CheckCapacity(scheduling.NewNodeClaimTemplate(pool).ToNodeClaim(), class)
	}
	if err != nil {
		problem = err.Error()
	}
	return cmp.Or(problem, "no VMID, address or machine is free for it")
}

// bindFitting does what the Kubernetes scheduler does if a Node is empty: those of the pods
// that are pending and fit run on it.
func (s *simulation) bindFitting(node string, names []string) error {
	pods, err := s.scheduler.GetPendingPods(s.ctx)
	if err != nil {
		return fmt.Errorf("listing pending pods: %w", err)
	}
	pods = slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !slices.Contains(names, client.ObjectKeyFromObject(pod).String()) })
	nodes := slices.DeleteFunc(s.cluster.DeepCopyNodes(), func(n *state.StateNode) bool { return n.Name() != node })
	results, err := s.scheduleOn(nodes, pods)
	if err != nil {
		return err
	}
	for _, existing := range results.ExistingNodes {
		if err := s.bind(node, existing.Pods); err != nil {
			return err
		}
	}
	return nil
}

// scheduleOn runs core's scheduler without NodePools: pods are scheduled on the given Nodes
// only.
func (s *simulation) scheduleOn(nodes []*state.StateNode, pods []*corev1.Pod) (scheduling.Results, error) {
	daemons := &appsv1.DaemonSetList{}
	if err := s.kube.List(s.ctx, daemons); err != nil {
		return scheduling.Results{}, err
	}
	var daemonPods []*corev1.Pod
	for i := range daemons.Items {
		daemonPods = append(daemonPods, daemonset.PodForDaemonSet(&daemons.Items[i]))
	}
	volumes := map[types.UID][]corescheduling.Requirements{}
	for _, pod := range pods {
		// Core's scheduler ignores the error too. Validate rejects pending pods with such volumes.
		volumes[pod.UID], _ = scheduling.NewVolumeTopology(s.kube).GetRequirements(s.ctx, pod)
	}
	topology, err := scheduling.NewTopology(s.ctx, s.kube, s.cluster, nodes, nil, nil, pods)
	if err != nil {
		return scheduling.Results{}, fmt.Errorf("scheduling on existing nodes: %w", err)
	}
	return scheduling.NewScheduler(s.ctx, s.kube, nil, s.cluster, nodes, topology, nil, daemonPods, s.recorder, instantClock{}, volumes, nil).Solve(s.ctx, pods)
}
