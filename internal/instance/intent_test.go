// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

func claimWithIntent(raw string) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "default-abc", UID: "uid", Annotations: map[string]string{v1alpha1.AnnotationLaunchIntent: raw}}}
	claim.Status.ProviderID = "proxmox://r/20001"
	return claim
}

func TestReadIntentErrors(t *testing.T) {
	t.Parallel()
	const valid = `"claim":"uid","region":"r","host":"h","vmid":20001`
	for name, c := range map[string]struct{ raw, want string }{
		"other_VM":         {`{"claim":"uid","region":"r","host":"h","vmid":20002}`, "it is the plan of VM proxmox://r/20002, and the NodeClaim's VM is proxmox://r/20001"},
		"other_claim":      {`{"claim":"x","region":"r","host":"h","vmid":20001}`, `the UID "x", and this one's is "uid"`},
		"no_host":          {`{"claim":"uid","region":"r","vmid":20001}`, "it has no host"},
		"other_field_type": {`{` + valid + `,"cores":{"count":2}}`, "cores"},
		"no_JSON":          {`yes`, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ok, err := ReadIntent(claimWithIntent(c.raw))
			NewWithT(t).Expect(ok).To(BeFalse())
			NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring(c.want), ContainSubstring("launch-intent of NodeClaim default-abc"))))
		})
	}
}

func TestReadInvalidProgress(t *testing.T) {
	t.Parallel()
	claim := claimWithIntent("")
	claim.Annotations[v1alpha1.AnnotationLaunchProgress] = `{"phase":["Later"],"timeline":7}`
	NewWithT(t).Expect(ReadProgress(claim).Phase).To(Equal(PhasePlanned))
}
