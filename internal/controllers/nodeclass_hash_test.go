// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func nodeClassHashReconcileClass(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	w.Expect(nodeclass.NewController(w.Kube, w.Events, statusDeps(w)).Reconcile(w.T.Context(), testenv.Reload(w, class))).Error().NotTo(HaveOccurred())
	return testenv.Reload(w, class)
}

func TestReconcileHash(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NeverPolled())
		class := nodeClassHashReconcileClass(w, w.NewClass())
		first := class.Annotations[v1alpha1.AnnotationNodeClassHash]
		w.Expect(first).To(Equal(class.Hash()))
		w.Expect(class.Annotations[v1alpha1.AnnotationNodeClassHashVersion]).To(Equal(v1alpha1.HashVersion))

		class.Spec.Tags = []string{"other"}
		w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
		w.Expect(nodeClassHashReconcileClass(w, class).Annotations[v1alpha1.AnnotationNodeClassHash]).To(Equal(first), "tags are written in place")

		class.Spec.BootDevice.Size = "50G"
		w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
		w.Expect(nodeClassHashReconcileClass(w, class).Annotations[v1alpha1.AnnotationNodeClassHash]).NotTo(Equal(first))

		settled := class.ResourceVersion
		w.Expect(nodeClassHashReconcileClass(w, class).ResourceVersion).To(Equal(settled), "nothing is written when nothing changed")
	})
}

// recordedClaim creates a claim with the hash of its class.
func recordedClaim(w *testenv.Env, name, class, hash, version string) *karpv1.NodeClaim {
	w.T.Helper()
	return w.Claim(name, &v1alpha1.ProxmoxNodeClass{ObjectMeta: metav1.ObjectMeta{Name: class}}, func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{v1alpha1.AnnotationNodeClassHash: hash, v1alpha1.AnnotationNodeClassHashVersion: version}
	})
}

// TestReconcileOtherHashVersion: an upgrade finds hashes of an older version, a
// downgrade those of a newer one.
func TestReconcileOtherHashVersion(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]string{"upgrade": "v0", "downgrade": "v99"} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.NeverPolled())
			class := w.NewClass()
			w.Annotate(class, map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: other})
			drifted := recordedClaim(w, "drifted", class.Name, "0", other)
			drifted.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
			w.Expect(w.Kube.Status().Update(t.Context(), drifted)).To(Succeed())
			claims := []struct {
				claim         *karpv1.NodeClaim
				hash, version string
				why           string
			}{
				{recordedClaim(w, "old", class.Name, "1", other), class.Hash(), v1alpha1.HashVersion, "it was up to date and stays so"},
				{drifted, "0", v1alpha1.HashVersion, "it stays drifted"},
				{recordedClaim(w, "current", class.Name, "7", v1alpha1.HashVersion), "7", v1alpha1.HashVersion, "hashes of this version can be compared"},
				{w.Claim("unhashed", class), "", "", "it was not created yet"},
				{recordedClaim(w, "unrelated", "another", "1", other), "1", other, "it belongs to another class"},
			}
			nodeClassHashReconcileClass(w, class)
			for _, c := range claims {
				testenv.Reload(w, c.claim)
				w.Expect(c.claim.Annotations[v1alpha1.AnnotationNodeClassHash]).To(Equal(c.hash), c.claim.Name+": "+c.why)
				w.Expect(c.claim.Annotations[v1alpha1.AnnotationNodeClassHashVersion]).To(Equal(c.version), c.claim.Name+": "+c.why)
			}
		})
	}
}
