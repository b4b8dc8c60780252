// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hash_test

import (
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

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
