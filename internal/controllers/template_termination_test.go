// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestDeleteUnmanagedTemplateInUse(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NeverPolled())
	var cached client.Client
	w.StartManager(
		func(kube client.Client) testenv.Registrar {
			cached = kube
			return unmanagedtemplate.NewController(kube, w.Inventory, w.Events)
		},
	)
	unmanaged := w.Template()
	w.Eventually(func() []string { return testenv.Reload(w, unmanaged).Finalizers }).Should(ConsistOf(v1alpha1.TerminationFinalizer))
	claim := w.Claim("node", w.Class())
	w.Eventually(func(g Gomega) {
		found := &v1alpha1.ProxmoxUnmanagedTemplate{}
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(unmanaged), found)).To(Succeed())
		g.Expect(found.ResourceVersion).To(Equal(testenv.Reload(w, unmanaged).ResourceVersion))
		g.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(claim), &karpv1.NodeClaim{})).To(Succeed())
	}).Should(Succeed(), "the cache is current before the template is deleted")

	expectDeletedAfter(w, unmanaged, claim, "template")
}
