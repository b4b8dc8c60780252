// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package driftevents

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Predicates get the object of the cache, which is read concurrently.
func TestPredicateDoesNotChangeObject(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationLaunchCompleted: "2026-01-01T00:00:00Z"}},
		Spec:       karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group}},
	}
	if isDrifted(claim) || len(claim.Status.Conditions) > 0 {
		t.Errorf("it matches, or was changed: %v", claim.Status.Conditions)
	}
}
