// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"strconv"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestDeleteUsedNodeClass(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	var cached client.Client
	w.StartManager(func(kube client.Client) testenv.Registrar {
		cached = kube
		return nodeclass.NewController(kube, w.Events, statusDeps(w))
	})
	class := w.NewClass()
	w.Eventually(func() []string { return testenv.Reload(w, class).Finalizers }).Should(ContainElement(v1alpha1.TerminationFinalizer))
	claim := w.Claim("user", class)
	another := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named("another") })
	unrelated := w.Claim("unrelated", another)
	w.Eventually(func(g Gomega) {
		found := &v1alpha1.ProxmoxNodeClass{}
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(class), found)).To(Succeed())
		g.Expect(found.Finalizers).To(ContainElement(v1alpha1.TerminationFinalizer))
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(claim), &karpv1.NodeClaim{})).To(Succeed())
	}).Should(Succeed(), "the cache is current before the class is deleted")

	expectDeletedAfter(w, class, claim, "NodeClass")
	w.Expect(w.IsDeleted(another)).To(BeFalse())
	w.Expect(w.IsDeleted(unrelated)).To(BeFalse())
}

// expectDeletedAfter deletes an object that a claim uses, and expects that it is deleted with the claim.
func expectDeletedAfter(w *testenv.Env, object client.Object, claim *karpv1.NodeClaim, kind string) {
	w.T.Helper()
	w.Expect(w.Kube.Delete(w.T.Context(), object)).To(Succeed())
	w.Eventually(func() []string { return w.Events.Messages("WaitingOnNodeClaimTermination") }).
		Should(ContainElement(kind + " is in use by NodeClaims (1), for example " + claim.Name + "; it is deleted when they are gone"))
	for n := range 10 {
		w.Annotate(claim, map[string]string{"example.com/changed": strconv.Itoa(n)})
	}
	w.Consistently(func() bool { return w.IsDeleted(object) }).WithTimeout(300 * time.Millisecond).Should(BeFalse())
	w.Expect(len(w.Events.Messages("WaitingOnNodeClaimTermination"))).To(BeNumerically("<", 5), "a changed claim causes no reconcile")
	w.Expect(w.Kube.Delete(w.T.Context(), claim)).To(Succeed())
	w.Eventually(func() bool { return w.IsDeleted(object) }).Should(BeTrue())
}

func TestDeleteUnusedNodeClass(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NeverPolled())
		controller := nodeclass.NewController(w.Kube, w.Events, statusDeps(w))
		class := w.NewClass()
		w.Expect(controller.Reconcile(t.Context(), class)).Error().NotTo(HaveOccurred())
		w.Expect(w.Kube.Delete(t.Context(), class)).To(Succeed())
		w.Expect(w.IsDeleted(class)).To(BeFalse(), "the finalizer holds it")
		w.Expect(controller.Reconcile(t.Context(), testenv.Reload(w, class))).To(BeZero())
		w.Expect(w.IsDeleted(class)).To(BeTrue())
		w.Expect(w.Events.Reasons(class)).To(BeEmpty())
	})
}

// Another controller that writes the class at the same time is not an error.
func TestConflict(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	controller := nodeclass.NewController(w.Kube, w.Events, statusDeps(w))
	class := w.NewClass()
	outdated := class.DeepCopy()
	w.Annotate(class, map[string]string{"example.com/changed": "meanwhile"})
	w.Expect(controller.Reconcile(t.Context(), outdated)).To(HaveField("RequeueAfter", BeNumerically(">", 0)))
	w.Expect(testenv.Reload(w, class).Finalizers).To(BeEmpty())
	w.Expect(controller.Reconcile(t.Context(), class)).Error().NotTo(HaveOccurred())
	w.Expect(testenv.Reload(w, class).Finalizers).To(ContainElement(v1alpha1.TerminationFinalizer))
}
