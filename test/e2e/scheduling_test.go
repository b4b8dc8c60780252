// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// spreadOverHosts checks that pods that must be spread over zones get VMs on as many hosts.
func (e *env) spreadOverHosts(t *testing.T) {
	needs(t, guestsThatJoin(), hosts(2))
	if suite.lab != nil {
		needs(t, capacity(len(suite.lab.Hosts)))
	}
	up := e.usableHosts(t)
	p := e.newNodePool(t, "spread", nil)
	p.deploy(t, int32(len(up)), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
		}}
	})
	p.waitForPods(t, len(up))
	if got := p.hostsOfPods(t); len(got) != len(up) || slices.Max(slices.Collect(maps.Values(got))) != 1 {
		t.Errorf("pods are on VMs of hosts %v, want one on each of %v", got, up)
	}
	p.deleteAllClaims(t)
}

// usableHosts returns the hosts that can have VMs.
func (e *env) usableHosts(t *testing.T) []string {
	t.Helper()
	if suite.lab != nil {
		return suite.lab.Hosts
	}
	all, err := e.api.Hosts(t.Context())
	must(t, err)
	return slices.Sorted(maps.Keys(all))
}

// podRequirements checks that the VM matches the node labels that a pod requires.
func (e *env) podRequirements(t *testing.T) {
	needs(t, guestsThatJoin(), hosts(2))
	names := e.usableHosts(t)
	last := names[len(names)-1]
	p := e.newNodePool(t, "required", nil)
	p.deploy(t, 1, func(d *appsv1.Deployment) {
		requireNode(d,
			corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: names[:len(names)-1]},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceCPU, Operator: corev1.NodeSelectorOpGt, Values: []string{"2"}},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceCPU, Operator: corev1.NodeSelectorOpLt, Values: []string{"8"}},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceMemory, Operator: corev1.NodeSelectorOpGt, Values: []string{"8192"}},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceMemory, Operator: corev1.NodeSelectorOpLt, Values: []string{"16384"}},
		)
	})
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	vm := vmOf(t, p, claim)
	cores, memory := fmt.Sprint(vm.Config["cores"]), fmt.Sprint(vm.Config["memory"])
	if vm.Host != last || cores != "4" || memory != "12288" {
		t.Errorf("the VM has %s cores and %s MiB on host %s, want 4 and 12288 on %s", cores, memory, vm.Host, last)
	}
	if node.Labels[v1alpha1.LabelInstanceCPU] != cores || node.Labels[v1alpha1.LabelInstanceMemory] != memory {
		t.Errorf("the node's labels are %v, want its VM's %s cores and %s MiB among them", node.Labels, cores, memory)
	}
	p.deleteClaims(t, claim)
}

// noHostFits checks that a pod without sufficient capacity on any host gets an event with a
// reason per host.
func (e *env) noHostFits(t *testing.T) {
	needs(t, simulator("it knows the size of the hosts"))
	p := e.newNodePool(t, "nowhere", nil)
	p.eventually(t, "the class to be ready", func(ctx context.Context) error {
		class := &v1alpha1.ProxmoxNodeClass{}
		err := p.kube.Get(ctx, client.ObjectKey{Name: p.kit.Class.Name}, class)
		if ready := class.StatusConditions().Root(); err == nil && !ready.IsTrue() {
			err = fmt.Errorf("it is not: %s", ready.Message)
		}
		return err
	})
	p.deploy(t, 1, func(d *appsv1.Deployment) {
		// Another guest uses two of the sixteen cores of each host.
		d.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("15")
	})
	var pods []corev1.Pod
	p.eventually(t, "the pod to exist", func(ctx context.Context) (err error) {
		if pods, err = harness.Pods(ctx, p.kube, p.name); err == nil && len(pods) != 1 {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	})
	message := p.waitForEvent(t, pods[0].Name, "NoHostFits")
	for _, want := range append(e.usableHosts(t), "nodepool "+p.name, "CPU") {
		if !strings.Contains(message, want) {
			t.Errorf("the pod's event does not contain %s: %s", want, message)
		}
	}
	p.deleteClaims(t)
}

// requireNode adds node affinity to the pods of a Deployment.
func requireNode(d *appsv1.Deployment, requirements ...corev1.NodeSelectorRequirement) {
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}},
		},
	}}
}

// hostsOfPods counts the pods of the Deployment by the host of their VM.
func (p *nodePool) hostsOfPods(t *testing.T) map[string]int {
	t.Helper()
	vms, err := p.vms(t.Context())
	must(t, err)
	hosts := map[string]string{}
	for _, vm := range vms {
		hosts[vm.Name] = vm.Host
	}
	pods, err := harness.Pods(t.Context(), p.kube, p.name)
	must(t, err)
	out := map[string]int{}
	for _, pod := range pods {
		out[hosts[pod.Spec.NodeName]]++
	}
	return out
}

// deleteAllClaims deletes all NodeClaims of the NodePool.
func (p *nodePool) deleteAllClaims(t *testing.T) {
	t.Helper()
	p.scaleToZero(t)
	claims, err := p.claims(t.Context())
	must(t, err)
	var all []*karpv1.NodeClaim
	for i := range claims {
		all = append(all, &claims[i])
	}
	p.deleteClaims(t, all...)
}
