// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Whatever an annotation contains, it neither changes the VM nor ends the controller.
func FuzzReadHolds(f *testing.F) {
	for _, seed := range []string{`null`, `[]`, ``, `{"addresses":["fe80::1%eth0","10.0.0.1"],"machine":"m"}`, `{"addresses":[""],"devices":[null]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		claim := newClaim()
		claim.Annotations[v1alpha1.AnnotationHolds] = raw
		in, ok := ReadIntent(claim)
		if !ok || in.ProviderID() != claim.Status.ProviderID {
			t.Errorf("the VM is %s", in.ProviderID())
		}
		_ = in.Reservation(claim)
	})
}
