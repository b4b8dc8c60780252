// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestDeadHost checks that Karpenter repairs the Nodes of a host that lost power: it drains
// them, the pods run elsewhere, and the VMs are deleted when the host is back.
func TestDeadHost(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it powers a host off"))
	e := newEnv(t, setup{
		gracePeriod: 20 * time.Second, featureGates: "NodeRepair=true",
		args: []string{"--repair-unready-toleration", "10s", "--orphan-grace-period", orphanGrace.String()},
	})
	before, err := e.holdings(t.Context())
	must(t, err)
	waiting, fenced := e.newStatefulNode(t, "waiting"), e.newStatefulNode(t, "fenced")
	host := waiting.vm.Host
	if fenced.vm.Host != host {
		t.Fatalf("the VMs are on hosts %s and %s, want one", host, fenced.vm.Host)
	}
	must(t, e.proxmox.HostDown(host, "noroute"))
	e.waitForEvent(t, waiting.claim.Name, "HostOffline")
	for _, n := range []*statefulNode{waiting, fenced} {
		n.waitForDrain(t)
		n.waitForPods(t, 1)
	}

	// An administrator declares the host as fenced for one of the claims.
	must(t, e.kube.Patch(t.Context(), fenced.claim, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.AnnotationHostFenced, host))))
	fenced.waitForDeletion(t, fenced.claim)
	e.waitForEvent(t, fenced.claim.Name, "VMAbandoned")
	fenced.waitForReplica(t)
	if err := e.kube.Get(t.Context(), client.ObjectKeyFromObject(waiting.claim), &karpv1.NodeClaim{}); err != nil {
		t.Errorf("the other claim does not wait for the host: %v", err)
	}

	must(t, e.proxmox.HostUp(host))
	waiting.waitForDeletion(t, waiting.claim)
	waiting.waitForReplica(t)
	for _, n := range []*statefulNode{waiting, fenced} {
		n.eventually(t, "the VM to be deleted", func(ctx context.Context) error { return n.noVM(ctx, n.claim) })
		if boots := e.proxmox.BootRecorder.BootsOf(string(n.claim.UID)); len(boots) != 1 {
			t.Errorf("VM %d was booted %d times, want once", n.vm.VMID, len(boots))
		}
		must(t, e.kube.Delete(t.Context(), n.set))
		n.eventually(t, "the pod of the StatefulSet to be deleted", func(ctx context.Context) error {
			pods, err := harness.Pods(ctx, n.kube, n.set.Name)
			if err == nil && len(pods) > 0 {
				err = errors.New("it exists")
			}
			return err
		})
		n.deleteAllClaims(t)
	}
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

// statefulNode is a Node with a pod of a Deployment and one of a StatefulSet.
type statefulNode struct {
	*nodePool
	claim *karpv1.NodeClaim
	vm    harness.Guest
	set   *appsv1.StatefulSet
	// replica is the pod of the StatefulSet.
	replica *corev1.Pod
}

func (e *env) newStatefulNode(t *testing.T, name string) *statefulNode {
	t.Helper()
	p := e.newNodePool(t, name, func(kit *harness.Kit) {
		kit.Class.Spec.PlacementStrategy.ZoneBalance = v1alpha1.ZoneBalancePacked
		kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	})
	n := &statefulNode{nodePool: p}
	n.claim, _ = p.oneNode(t)
	n.vm = vmOf(t, p, n.claim)
	n.set = &appsv1.StatefulSet{}
	pods := harness.Deployment(name+"-database", 1)
	n.set.Name, n.set.Namespace = pods.Name, pods.Namespace
	n.set.Spec = appsv1.StatefulSetSpec{Selector: pods.Spec.Selector, Template: pods.Spec.Template, ServiceName: pods.Name}
	n.set.Spec.Template.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: name}
	// Kubernetes deletes a pod without a grace period before its kubelet has stopped it.
	n.set.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(1))
	n.set.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	must(t, e.kube.Create(t.Context(), n.set))
	n.waitForReplica(t)
	if n.replica.Spec.NodeName != n.claim.Status.NodeName {
		t.Fatalf("pod %s is on node %s, want %s", n.replica.Name, n.replica.Spec.NodeName, n.claim.Status.NodeName)
	}
	return n
}

// waitForReplica waits until the StatefulSet has a ready pod that is not the last one.
func (n *statefulNode) waitForReplica(t *testing.T) {
	t.Helper()
	// The pod garbage collector deletes pods of a deleted Node after 40 s.
	n.within(t, 2*timeout(), "a new pod of StatefulSet "+n.set.Name, func(ctx context.Context) error {
		pods, err := harness.Pods(ctx, n.kube, n.set.Name)
		if err != nil {
			return err
		}
		if len(pods) != 1 || !harness.PodReady(&pods[0]) || (n.replica != nil && n.replica.UID == pods[0].UID) {
			return fmt.Errorf("found %d pods, or the pod is not new and ready", len(pods))
		}
		n.replica = &pods[0]
		return nil
	})
}

// waitForDrain waits until the Node is drained and its claim waits for the host.
func (n *statefulNode) waitForDrain(t *testing.T) {
	t.Helper()
	// Core waits a minute for pods that no kubelet stops.
	n.within(t, 4*timeout(), "node "+n.claim.Name+" to be drained", func(ctx context.Context) error {
		claim := &karpv1.NodeClaim{}
		if err := n.kube.Get(ctx, client.ObjectKeyFromObject(n.claim), claim); err != nil {
			return err
		}
		if !claim.StatusConditions().Get(karpv1.ConditionTypeDrained).IsTrue() {
			return fmt.Errorf("it is not drained, deletion started at %v", claim.DeletionTimestamp)
		}
		node, err := n.node(ctx, claim)
		if err != nil {
			return err
		}
		for _, taint := range node.Spec.Taints {
			if taint.Key == karpv1.DisruptedTaintKey {
				return nil
			}
		}
		return errors.New("it has no taint")
	})
	n.waitForEvent(t, n.claim.Name, "HostUnreachable")
}
