// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hash_test

import (
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass/hash"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func reconcileClass(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	_, err := hash.NewController(w.Kube).Reconcile(w.T.Context(), testenv.Reload(w, class))
	w.Expect(err).NotTo(HaveOccurred())
	return testenv.Reload(w, class)
}

func TestReconcileHash(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled())
	class := reconcileClass(w, w.NewClass())
	first := class.Annotations[v1alpha1.AnnotationNodeClassHash]
	w.Expect(first).To(Equal(class.Hash()))
	w.Expect(class.Annotations[v1alpha1.AnnotationNodeClassHashVersion]).To(Equal(v1alpha1.HashVersion))

	class.Spec.Tags = []string{"other"}
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(reconcileClass(w, class).Annotations[v1alpha1.AnnotationNodeClassHash]).To(Equal(first), "tags are written in place")

	class.Spec.BootDevice.Size = "50G"
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(reconcileClass(w, class).Annotations[v1alpha1.AnnotationNodeClassHash]).NotTo(Equal(first))

	settled := class.ResourceVersion
	w.Expect(reconcileClass(w, class).ResourceVersion).To(Equal(settled), "nothing is written when nothing changed")
}

// TestReconcileOtherHashVersion: an upgrade finds hashes of an older version, a
// downgrade those of a newer one.
func TestReconcileOtherHashVersion(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]string{"upgrade": "v0", "downgrade": "v99"} {
		t.Run(name, func(t *testing.T) { t.Parallel(); expectNoDrift(t, other) })
	}
}

func expectNoDrift(t *testing.T, other string) {
	t.Helper()
	w := testenv.New(t, testenv.NeverPolled())
	class := w.NewClass()
	w.Annotate(class, map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: other})
	newClaim := func(name, hash, version string) *karpv1.NodeClaim {
		return w.Claim(name, class, func(c *karpv1.NodeClaim) {
			c.Annotations = map[string]string{v1alpha1.AnnotationNodeClassHash: hash, v1alpha1.AnnotationNodeClassHashVersion: version}
		})
	}
	old, drifted, current := newClaim("old", "1", other), newClaim("drifted", "0", other), newClaim("current", "7", v1alpha1.HashVersion)
	drifted.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
	w.Expect(w.Kube.Status().Update(t.Context(), drifted)).To(Succeed())
	unhashed := w.Claim("unhashed", class)
	another := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named("another") })
	unrelated := w.Claim("unrelated", another, func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: other}
	})

	reconcileClass(w, class)
	for _, c := range []struct {
		claim         *karpv1.NodeClaim
		hash, version string
		why           string
	}{
		{old, class.Hash(), v1alpha1.HashVersion, "it was up to date and stays so"},
		{drifted, "0", v1alpha1.HashVersion, "it stays drifted"},
		{current, "7", v1alpha1.HashVersion, "hashes of this version can be compared"},
		{unhashed, "", "", "it was not created yet"},
		{unrelated, "1", other, "it belongs to another class"},
	} {
		testenv.Reload(w, c.claim)
		w.Expect(c.claim.Annotations[v1alpha1.AnnotationNodeClassHash]).To(Equal(c.hash), c.claim.Name+": "+c.why)
		w.Expect(c.claim.Annotations[v1alpha1.AnnotationNodeClassHashVersion]).To(Equal(c.version), c.claim.Name+": "+c.why)
	}
}

// Claims of a release that did not record the fields get them, unless they are drifted.
func TestReconcileFields(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled())
	class := w.NewClass()
	claim := func(name, hash string) *karpv1.NodeClaim {
		return w.Claim(name, class, func(c *karpv1.NodeClaim) {
			c.Annotations = map[string]string{v1alpha1.AnnotationNodeClassHash: hash, v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion}
		})
	}
	current, drifted := claim("current", class.Hash()), claim("drifted", "1")
	reconcileClass(w, class)
	w.Expect(testenv.Reload(w, current).Annotations[v1alpha1.AnnotationNodeClassFields]).To(Equal(class.EncodeHashedFields()))
	w.Expect(testenv.Reload(w, drifted).Annotations).NotTo(HaveKey(v1alpha1.AnnotationNodeClassFields))
}
