// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package driftevents_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const waits = "DriftWaitingForCapacity"

// cores sets the cores of every Host: a VM has two, and two are reserved for the Host.
func cores(n int) testenv.Option {
	return testenv.Scenario(func(s *pvesim.Scenario) {
		for i := range s.Hosts {
			s.Hosts[i].Cores = n
		}
	})
}

// drifting returns a claim that is drifted, with pods on its Node.
func drifting(w *testenv.Env, pods ...string) (*v1alpha1.ProxmoxNodeClass, *karpv1.NodeClaim) {
	w.T.Helper()
	class := w.Class()
	w.Pool(class)
	claim := w.Planned("a", class)
	claim.Status.NodeName = w.Named("node")
	claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "NodeClassDrift", "NodeClassDrift")
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	for _, name := range pods {
		w.Create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: name},
			Spec: corev1.PodSpec{NodeName: claim.Status.NodeName, Containers: []corev1.Container{{
				Name: "c", Image: "example.com/none",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
			}}},
		})
	}
	return class, claim
}

func reconcile(w *testenv.Env, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	result, err := newController(w, w.Kube).Reconcile(w.T.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

func TestReconcileInsufficientCapacity(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), cores(4))
	class, claim := drifting(w, "app")
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: w.Named("pool")}}
	testenv.Reload(w, pool)
	// Another claim has the remaining capacity.
	other := w.Planned("other", class)

	w.Expect(reconcile(w, claim)).To(BeNumerically("~", time.Minute, 30*time.Second))
	w.Expect(w.Events.Messages(waits)).To(BeEmpty(), "core has not had time to replace it")
	w.Clock.Advance(2 * time.Minute)
	w.Expect(reconcile(w, claim)).To(BeNumerically(">", 0), "checked again")
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"DriftDetected", waits}))
	w.Expect(w.Events.Reasons(pool)).To(Equal([]string{waits}))
	w.Expect(w.Events.Messages(waits)).To(HaveEach(And(ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU"))))

	w.Instances.Planner.Release(string(other.UID))
	w.Expect(reconcile(w, claim)).To(BeNumerically(">", 0))
	w.Expect(w.Events.Messages(waits)).To(HaveLen(2), "there is capacity now")
}

func TestReconcileWithoutEvent(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), cores(4))
	_, claim := drifting(w)
	w.Clock.Advance(2 * time.Minute)
	w.Expect(reconcile(w, claim)).To(BeNumerically(">", 0))
	w.Expect(w.Events.Messages(waits)).To(BeEmpty(), "an empty Node needs no replacement")

	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	claim.DeletionTimestamp = new(metav1.Now())
	result, err := newController(w, w.Kube).Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeZero(), "it is being deleted")
}
