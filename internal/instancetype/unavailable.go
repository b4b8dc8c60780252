// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// OfferingSelector selects the offerings that a failed launch affects: a type in a zone.
// An empty InstanceType means every type. An empty NodeClass means every NodeClass: a
// full storage affects all of them, an invalid template only its own.
type OfferingSelector struct {
	Zone         placement.Zone
	InstanceType string
	NodeClass    string
}

// MarkUnavailable makes offerings unavailable for a time after a failed launch.
func (p *Provider) MarkUnavailable(offerings OfferingSelector, reason string, ttl time.Duration) {
	p.unavailable.Add(offerings, reason, ttl)
}

// ResetFailures makes offerings available again that failed for one NodeClass only,
// after the NodeClass was changed.
func (p *Provider) ResetFailures(nodeClass string) {
	p.unavailable.Clear(func(offerings OfferingSelector) bool { return offerings.NodeClass == nodeClass })
}

// failureReason returns why an offering is unavailable after a failed launch; empty if it is not.
func (p *Provider) failureReason(offering OfferingSelector) string {
	for _, instanceType := range [...]string{"", offering.InstanceType} {
		for _, nodeClass := range [...]string{"", offering.NodeClass} {
			if reason, until, held := p.unavailable.Get(OfferingSelector{offering.Zone, instanceType, nodeClass}); held {
				return fmt.Sprintf("failed recently, retried at %s: %s", until.UTC().Format(time.RFC3339), reason)
			}
		}
	}
	return ""
}
