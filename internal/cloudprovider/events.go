// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// removalBlocked says what keeps a VM from being removed.
func removalBlocked(claim *karpv1.NodeClaim, blocked *instance.BlockedError) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         blocked.Reason,
		Message:        blocked.Message,
		DedupeValues:   []string{string(claim.UID), blocked.Reason},
	}
}

// waitingForRoom says why a Claim of a static pool does not become a VM yet.
func waitingForRoom(claim *karpv1.NodeClaim, why error) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         "WaitingForCapacity",
		Message:        why.Error(),
		DedupeValues:   []string{string(claim.UID)},
	}
}
