// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// RegionClaims are the Claims of a region that were launched and are not being deleted.
type RegionClaims struct {
	// Existing have a VM.
	Existing []*karpv1.NodeClaim
	// Missing have none. The last Snapshot shows it; it is not confirmed yet.
	Missing []*karpv1.NodeClaim
	// Launched is the number of all launched Claims, including those being deleted.
	Launched int
}

// Compare compares Claims with the VMs of List by claim UID. Claims whose VM may exist
// although it is not listed are in neither list.
func (p *Provider) Compare(claims []karpv1.NodeClaim, vms map[string]VM) map[string]*RegionClaims {
	out := map[string]*RegionClaims{}
	for i := range claims {
		claim := &claims[i]
		id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
		if err != nil || !p.deps.IsLaunched(claim) {
			continue
		}
		r := out[id.Region]
		if r == nil {
			r = &RegionClaims{}
			out[id.Region] = r
		}
		r.Launched++
		_, exists := vms[string(claim.UID)]
		switch {
		case !claim.DeletionTimestamp.IsZero():
		case exists:
			r.Existing = append(r.Existing, claim)
		case !p.MayExist(claim):
			r.Missing = append(r.Missing, claim)
		}
	}
	return out
}
