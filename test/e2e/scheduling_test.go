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
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// spreadOverHosts: pods that must be spread over zones come to VMs on as many Hosts.
func (w *world) spreadOverHosts(t *testing.T) {
	needs(t, guestsThatJoin(), hosts(2))
	if suite.lab != nil {
		needs(t, room(len(suite.lab.Hosts)))
	}
	up := w.usableHosts(t)
	p := w.newPool(t, "spread", nil)
	p.deploy(t, int32(len(up)), func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
		}}
	})
	p.podsRun(t, len(up))
	if got := p.hostsOfPods(t); len(got) != len(up) || slices.Max(slices.Collect(maps.Values(got))) != 1 {
		t.Errorf("there are pods on VMs of hosts %v, want one on each of %v", got, up)
	}
	p.giveAllBack(t)
}

// usableHosts can take VMs.
func (w *world) usableHosts(t *testing.T) []string {
	t.Helper()
	if suite.lab != nil {
		return suite.lab.Hosts
	}
	all, err := w.api.Hosts(t.Context())
	must(t, err)
	return slices.Sorted(maps.Keys(all))
}

// requirementsHold: whatever a pod requires of its Node by labels, the VM has.
func (w *world) requirementsHold(t *testing.T) {
	needs(t, guestsThatJoin(), hosts(2))
	names := w.usableHosts(t)
	last := names[len(names)-1]
	p := w.newPool(t, "required", nil)
	p.deploy(t, 1, func(d *appsv1.Deployment) {
		requireNode(d,
			corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: names[:len(names)-1]},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceCPU, Operator: corev1.NodeSelectorOpGt, Values: []string{"2"}},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceCPU, Operator: corev1.NodeSelectorOpLt, Values: []string{"8"}},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceMemory, Operator: corev1.NodeSelectorOpGt, Values: []string{"8192"}},
			corev1.NodeSelectorRequirement{Key: v1alpha1.LabelInstanceMemory, Operator: corev1.NodeSelectorOpLt, Values: []string{"16384"}},
		)
	})
	p.podsRun(t, 1)
	claim := p.onlyClaim(t, "is settled", settled)
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
	p.giveBack(t, claim)
}

// fitsNowhere: a pod for which no Host has room is told why, Host by Host.
func (w *world) fitsNowhere(t *testing.T) {
	needs(t, simulator("it knows how large the hosts are"))
	p := w.newPool(t, "nowhere", nil)
	p.deploy(t, 1, func(d *appsv1.Deployment) {
		// Somebody else has two of the sixteen cores of each host.
		d.Spec.Template.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("15")
	})
	var pods []corev1.Pod
	p.eventually(t, "the pod to be there", func(ctx context.Context) (err error) {
		if pods, err = harness.Pods(ctx, p.kube, p.name); err == nil && len(pods) != 1 {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	})
	message := p.hasEvent(t, pods[0].Name, "NoHostFits")
	for _, want := range append(w.usableHosts(t), "nodepool "+p.name, "CPU") {
		if !strings.Contains(message, want) {
			t.Errorf("the pod's event does not tell about %s: %s", want, message)
		}
	}
	p.giveBack(t)
}

// requireNode makes the pods of a deployment require something of their Node.
func requireNode(d *appsv1.Deployment, requirements ...corev1.NodeSelectorRequirement) {
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}},
		},
	}}
}

// hostsOfPods counts the pods of the pool's deployment by the Host that their VM is on.
func (p *pool) hostsOfPods(t *testing.T) map[string]int {
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

// giveAllBack gives back whatever claims the pool has.
func (p *pool) giveAllBack(t *testing.T) {
	t.Helper()
	claims, err := p.claims(t.Context())
	must(t, err)
	var all []*karpv1.NodeClaim
	for i := range claims {
		all = append(all, &claims[i])
	}
	p.giveBack(t, all...)
}
