// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestMaintenance puts one host after the other into maintenance. Its Nodes must be
// replaced, and never more than one pod may be unavailable.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it puts all hosts into maintenance"))
	t.Run("within_disruption_budgets", func(t *testing.T) {
		t.Parallel()
		// The list of hosts contains the HA manager's state since 9.2.
		e := newEnv(t, setup{version: "9.2"})
		e.maintainHosts(t, e.newNodePool(t, "rolled", nil))
	})
	t.Run("timeout", func(t *testing.T) {
		t.Parallel()
		e := newEnv(t, setup{version: "9.2", args: []string{"--host-maintenance-timeout", "5s"}})
		e.maintainHosts(t, e.newNodePool(t, "forced", func(kit *harness.Kit) {
			kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}}
		}))
	})
}

func (e *env) maintainHosts(t *testing.T, p *nodePool) {
	t.Helper()
	const pods = 3
	p.deploy(t, pods, func(d *appsv1.Deployment) {
		selector := d.Spec.Selector
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: selector, TopologyKey: corev1.LabelHostname}},
		}}
		d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
		}}
	})
	p.waitForPods(t, pods)
	p.waitForNodes(t, pods)
	one := intstr.FromInt32(1)
	must(t, e.kube.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: p.name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": p.name}}},
	}))
	fewest := p.countReadyPods(t, pods)
	moved := 0
	for i, host := range e.usableHosts(t) {
		before := p.vmsOn(t, host)
		end := e.startMaintenance(t, host, i%2 == 0)
		p.within(t, 2*timeout(), "host "+host+" to be drained", func(ctx context.Context) error {
			vms, err := p.vms(ctx)
			for _, vm := range vms {
				if vm.Host == host {
					return fmt.Errorf("VM %d is on it", vm.VMID)
				}
			}
			return err
		})
		p.waitForPods(t, pods)
		p.waitForNodes(t, pods)
		end()
		moved += before
	}
	if moved < pods {
		t.Errorf("%d VMs were on the hosts before their maintenance, want at least the first %d", moved, pods)
	}
	if n := fewest(); n < pods-1 {
		t.Errorf("only %d of %d pods were ready at one time, but the PodDisruptionBudget allows one to be unavailable", n, pods)
	}
	p.deleteAllClaims(t)
}

func (p *nodePool) vmsOn(t *testing.T, host string) (n int) {
	t.Helper()
	vms, err := p.vms(t.Context())
	must(t, err)
	for _, vm := range vms {
		if vm.Host == host {
			n++
		}
	}
	return n
}

// startMaintenance puts a host into maintenance, in Proxmox or in Kubernetes, and returns
// a function that ends it.
func (e *env) startMaintenance(t *testing.T, host string, inProxmox bool) (end func()) {
	t.Helper()
	if inProxmox {
		must(t, e.proxmox.SetMaintenance(host, true))
		return func() { must(t, e.proxmox.SetMaintenance(host, false)) }
	}
	list := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: maintenance.ConfigMapName},
		Data:       map[string]string{inventory.HostName{Region: e.region, Host: host}.Key(): "end-to-end test"},
	}
	must(t, e.kube.Create(t.Context(), list))
	return func() { must(t, e.kube.Delete(t.Context(), list)) }
}

// countReadyPods watches the pods of the Deployment, all of which are ready, and returns a
// function that returns the fewest pods that were ready at one time.
func (p *nodePool) countReadyPods(t *testing.T, pods int) (fewest func() int) {
	t.Helper()
	events, err := p.kube.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": p.name})
	must(t, err)
	t.Cleanup(events.Stop)
	var low atomic.Int64
	low.Store(int64(pods))
	ready := map[string]bool{}
	go func() {
		counted := false // all pods were seen
		for event := range events.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			delete(ready, pod.Name)
			if event.Type != watch.Deleted && pod.DeletionTimestamp.IsZero() && harness.PodReady(pod) {
				ready[pod.Name] = true
			}
			if counted = counted || len(ready) == pods; counted {
				low.Store(min(low.Load(), int64(len(ready))))
			}
		}
	}()
	return func() int { return int(low.Load()) }
}
