// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corev1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestCreateWithNodeOverlays(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	w.Pool(class)
	bigger := ""
	for _, it := range w.Types.List(class, "") {
		if it.Capacity.Cpu().Value() == 4 {
			bigger = it.Name
		}
	}
	w.Expect(bigger).NotTo(BeEmpty())
	store := nodeoverlay.NewInstanceTypeStore()
	cp := provider(w, func(d *cloudprovider.Deps) { d.Overlays = store })
	either := func(c *karpv1.NodeClaim) { c.Spec.Requirements[0].Values = []string{testenv.InstanceType, bigger} }
	plain, err := cp.Create(t.Context(), w.Claim("plain", class, either))
	w.Expect(err).NotTo(HaveOccurred(), "NodeOverlays that were not evaluated yet are ignored")
	w.Expect(plain.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, testenv.InstanceType))

	w.Create(&corev1alpha1.NodeOverlay{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("bargain")},
		Spec: corev1alpha1.NodeOverlaySpec{
			Requirements: []corev1alpha1.NodeSelectorRequirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{bigger}}},
			Price:        new("0.000001"),
			Capacity:     corev1.ResourceList{"example.com/license": resource.MustParse("1")},
		},
	})
	_, err = nodeoverlay.NewController(w.Clock, w.Kube, cp, store, state.NewCluster(w.Clock, w.Kube, cp)).Reconcile(t.Context(), reconcile.Request{})
	w.Expect(err).NotTo(HaveOccurred())
	filled, err := cp.Create(t.Context(), w.Claim("overlaid", class, either))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, bigger), "price of the overlay")
	w.Expect(filled.Status.Capacity).To(HaveKey(corev1.ResourceName("example.com/license")), "capacity of the overlay")
}
