// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/node/capacity"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// newNode creates the initialized Node of a claim. It reports its VM's memory without an
// overhead.
func newNode(w *testenv.Env, claim *karpv1.NodeClaim, overheadMiB int) *corev1.Node {
	node := w.Node(claim)
	testenv.Modify(w, node, func(n *corev1.Node) {
		n.Labels[karpv1.NodeRegisteredLabelKey], n.Labels[karpv1.NodeInitializedLabelKey] = "true", "true"
	})
	setMemory(w, node, int64(w.Intent(claim).MemoryMiB-overheadMiB)<<20)
	return node
}

func setMemory(w *testenv.Env, node *corev1.Node, memory int64) {
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
}

func newController(w *testenv.Env) *capacity.Controller {
	return capacity.NewController(w.Kube, w.Types, w.Inventory, w.Events)
}

func reconcile(w *testenv.Env, node *corev1.Node) time.Duration {
	w.T.Helper()
	result, err := newController(w).Reconcile(w.T.Context(), node)
	w.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

// memory returns the memory that new Nodes of the claim's type are expected to report.
func memory(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim) int64 {
	w.T.Helper()
	it, ok := w.Types.Get(testenv.Reload(w, class), w.Intent(claim).InstanceType)
	w.Expect(ok).To(BeTrue())
	return it.Capacity.Memory().Value() >> 20
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	claim := w.Launched("a", class)
	launched := int64(w.Intent(claim).MemoryMiB)
	node := newNode(w, claim, 175)
	w.Expect(memory(w, class, claim)).To(Equal(launched), "the estimate of the test is no overhead")

	w.Expect(reconcile(w, node)).To(BeZero())
	learned := memory(w, class, claim)
	w.Expect(learned).To(And(BeNumerically("<=", launched-175), BeNumerically(">=", launched-177)))

	version := testenv.Reload(w, class).ResourceVersion
	w.Expect(reconcile(w, node)).To(BeZero())
	setMemory(w, node, (launched-170)<<20)
	w.Expect(reconcile(w, node)).To(BeZero())
	w.Expect(testenv.Reload(w, class).ResourceVersion).To(Equal(version), "a Node with the same or more memory changes nothing")

	w.Restart(true)
	w.Expect(memory(w, class, claim)).To(Equal(learned), "after a restart")
	w.Expect(w.Kube.Delete(t.Context(), node)).To(Succeed())
	w.Restart(true)
	w.Expect(memory(w, class, claim)).To(Equal(learned), "without Nodes")
	w.Expect(w.Events.Messages(v1alpha1.EventNodeCapacityIgnored)).To(BeEmpty())
}

func TestReconcileIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*testenv.Env, *karpv1.NodeClaim, *corev1.Node)
		event  string
	}{
		"not_initialized": {func(_ *testenv.Env, _ *karpv1.NodeClaim, n *corev1.Node) {
			delete(n.Labels, karpv1.NodeInitializedLabelKey)
		}, ""},
		"no_provider_ID": {func(_ *testenv.Env, _ *karpv1.NodeClaim, n *corev1.Node) { n.Spec.ProviderID = "" }, ""},
		"another_node":   {func(_ *testenv.Env, _ *karpv1.NodeClaim, n *corev1.Node) { n.Name = "another" }, ""},
		"no_memory":      {func(_ *testenv.Env, _ *karpv1.NodeClaim, n *corev1.Node) { n.Status.Capacity = nil }, "reports 0 MiB of memory"},
		"more_than_the_VM": {func(_ *testenv.Env, _ *karpv1.NodeClaim, n *corev1.Node) {
			n.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ti")}
		}, "reports 1048576 MiB of memory, want less than"},
		"adopted": {func(w *testenv.Env, claim *karpv1.NodeClaim, _ *corev1.Node) {
			in := w.Intent(claim)
			in.TemplateID = 0
			w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: in.Encode()})
		}, ""},
		"older_image": {func(w *testenv.Env, claim *karpv1.NodeClaim, _ *corev1.Node) {
			in := w.Intent(claim)
			in.ImageID = "older"
			w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: in.Encode()})
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t)
			class := w.Class()
			claim := w.Launched("a", class)
			node := newNode(w, claim, 175)
			c.change(w, claim, node)
			w.Expect(reconcile(w, node)).To(BeZero())
			w.Expect(testenv.Reload(w, class).Status.MemoryOverhead).To(BeEmpty())
			if c.event == "" {
				w.Expect(w.Events.Messages(v1alpha1.EventNodeCapacityIgnored)).To(BeEmpty())
			} else {
				w.Expect(w.Events.Messages(v1alpha1.EventNodeCapacityIgnored)).To(ConsistOf(ContainSubstring(c.event)))
			}
		})
	}
}

// TestReconcileUnknownVM: after a restart, the VM is known when its Cluster was polled.
func TestReconcileUnknownVM(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	node := newNode(w, w.Launched("a", class), 175)
	w.Restart(false)
	w.Expect(reconcile(w, node)).To(BeNumerically(">", 0))
	w.Refresh()
	w.Expect(reconcile(w, node)).To(BeZero())
	w.Expect(testenv.Reload(w, class).Status.MemoryOverhead).To(HaveLen(1))
}

// TestRegister checks that the controller records Nodes when they are initialized and when
// their capacity changes, with writes of other controllers in between.
func TestRegister(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	class := w.Class()
	first, second := w.Launched("a", class), w.Launched("b", class)
	launched := w.Intent(first).MemoryMiB
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return capacity.NewController(kube, w.Types, w.Inventory, w.Events)
	})
	overhead := func(ctx context.Context) (string, error) {
		current := &v1alpha1.ProxmoxNodeClass{}
		err := w.Kube.Get(ctx, client.ObjectKeyFromObject(class), current)
		if len(current.Status.MemoryOverhead) != 1 {
			return "", err
		}
		return fmt.Sprint(current.Status.MemoryOverhead[0].Sizes), err
	}
	node := newNode(w, first, 175)
	w.Eventually(overhead).WithContext(t.Context()).Should(Equal(fmt.Sprintf("[{%d 175}]", launched)))
	newNode(w, second, 180)
	w.Eventually(overhead).WithContext(t.Context()).Should(Equal(fmt.Sprintf("[{%d 180}]", launched)))
	setMemory(w, testenv.Reload(w, node), int64(launched-190)<<20)
	w.Eventually(overhead).WithContext(t.Context()).Should(Equal(fmt.Sprintf("[{%d 190}]", launched)))
}
