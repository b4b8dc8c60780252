// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// newCapacityNode creates the initialized Node of a claim. It reports its VM's memory without an
// overhead.
func newCapacityNode(w *testenv.Env, claim *karpv1.NodeClaim, overheadMiB int) *corev1.Node {
	node := w.Node(claim)
	testenv.Modify(w, node, func(n *corev1.Node) {
		metav1.SetMetaDataLabel(&n.ObjectMeta, karpv1.NodeRegisteredLabelKey, "true")
		metav1.SetMetaDataLabel(&n.ObjectMeta, karpv1.NodeInitializedLabelKey, "true")
	})
	setMemory(w, node, int64(w.Intent(claim).MemoryMiB-overheadMiB)<<20)
	return node
}

func setMemory(w *testenv.Env, node *corev1.Node, memory int64) {
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
}

func capacityReconcile(w *testenv.Env, node *corev1.Node) time.Duration {
	w.T.Helper()
	result, err := newRegistrationController(w, w.Kube).Reconcile(w.T.Context(), node)
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

func TestCapacityReconcile(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		claim := w.Launched("a", class)
		launched := int64(w.Intent(claim).MemoryMiB)
		node := newCapacityNode(w, claim, 175)
		w.Expect(memory(w, class, claim)).To(Equal(launched), "the estimate of the test is no overhead")

		w.Expect(capacityReconcile(w, node)).To(BeZero())
		learned := memory(w, class, claim)
		w.Expect(learned).To(And(BeNumerically("<=", launched-175), BeNumerically(">=", launched-177)))

		version := testenv.Reload(w, class).ResourceVersion
		w.Expect(capacityReconcile(w, node)).To(BeZero())
		setMemory(w, node, (launched-170)<<20)
		w.Expect(capacityReconcile(w, node)).To(BeZero())
		w.Expect(testenv.Reload(w, class).ResourceVersion).To(Equal(version), "a Node with the same or more memory changes nothing")

		w.Restart(false)
		w.Expect(capacityReconcile(w, node)).To(BeNumerically(">", 0), "the VM is known when its Cluster was polled")
		w.Refresh()
		w.Expect(memory(w, class, claim)).To(Equal(learned), "after a restart")
		setMemory(w, node, (launched-180)<<20)
		w.Expect(capacityReconcile(w, node)).To(BeZero())
		w.Expect(memory(w, class, claim)).To(BeNumerically("<", learned))
		learned = memory(w, class, claim)
		w.Expect(w.Kube.Delete(w.Context(), node)).To(Succeed())
		w.Restart(true)
		w.Expect(memory(w, class, claim)).To(Equal(learned), "without Nodes")
		w.Expect(w.Events.Messages(v1alpha1.EventNodeCapacityIgnored)).To(BeEmpty())
	})
}

func TestReconcileIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		mark   func(*ownership.Mark)
		event  string
	}{
		"not_initialized": {change: func(n *corev1.Node) { delete(n.Labels, karpv1.NodeInitializedLabelKey) }},
		"no_provider_ID":  {change: func(n *corev1.Node) { n.Spec.ProviderID = "" }},
		"another_node":    {change: func(n *corev1.Node) { n.Name = "another" }},
		"no_memory":       {change: func(n *corev1.Node) { n.Status.Capacity = nil }, event: "reports 0 MiB of memory"},
		"more_than_the_VM": {
			change: func(n *corev1.Node) { n.Status.Capacity[corev1.ResourceMemory] = resource.MustParse("1Ti") },
			event:  "reports 1048576 MiB of memory, want less than",
		},
		"adopted":     {mark: func(m *ownership.Mark) { m.Source = nil }},
		"older_image": {mark: func(m *ownership.Mark) { m.Source.Image = "older" }},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			class := w.Class()
			claim := w.Launched("a", class)
			node := newCapacityNode(w, claim, 175)
			if c.change != nil {
				c.change(node)
			}
			if c.mark != nil {
				setMark(w, claim, c.mark)
			}
			w.Expect(capacityReconcile(w, node)).To(BeZero())
			w.Expect(testenv.Reload(w, class).Status.MemoryOverhead).To(BeEmpty())
			messages := w.Events.Messages(v1alpha1.EventNodeCapacityIgnored)
			w.Expect(messages).To(HaveLen(min(1, len(c.event))))
			w.Expect(strings.Join(messages, "")).To(ContainSubstring(c.event))
		})
	}
}

// TestRegister checks that the controller records Nodes when they are initialized and when
// their capacity changes, with writes of other controllers in between.
func TestRegister(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t)
	class := w.Class()
	first, second := w.Launched("a", class), w.Launched("b", class)
	launched := w.Intent(first).MemoryMiB
	w.StartManager(func(kube client.Client) testenv.Registrar {
		return newRegistrationController(w, kube)
	})
	overhead := func(ctx context.Context) (string, error) {
		current := &v1alpha1.ProxmoxNodeClass{}
		err := w.Kube.Get(ctx, client.ObjectKeyFromObject(class), current)
		if len(current.Status.MemoryOverhead) != 1 {
			return "", err
		}
		return fmt.Sprint(current.Status.MemoryOverhead[0].Sizes), err
	}
	node := newCapacityNode(w, first, 175)
	w.Eventually(overhead).WithContext(t.Context()).Should(Equal(fmt.Sprintf("[{%d 175}]", launched)))
	newCapacityNode(w, second, 180)
	w.Eventually(overhead).WithContext(t.Context()).Should(Equal(fmt.Sprintf("[{%d 180}]", launched)))
	setMemory(w, testenv.Reload(w, node), int64(launched-190)<<20)
	w.Eventually(overhead).WithContext(t.Context()).Should(Equal(fmt.Sprintf("[{%d 190}]", launched)))
}
