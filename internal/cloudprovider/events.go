// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// deletionBlockedEvent reports what prevents the deletion of a VM.
func deletionBlockedEvent(claim *karpv1.NodeClaim, blocked *instance.BlockedError) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         blocked.Reason,
		Message:        blocked.Message,
		DedupeValues:   []string{string(claim.UID), blocked.Reason},
	}
}

// abandonedEvent reports what is left of a VM whose Claim is finished without it.
func abandonedEvent(claim *karpv1.NodeClaim, abandoned *instance.AbandonedError) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         v1alpha1.EventVMAbandoned,
		Message:        abandoned.Message,
		DedupeValues:   []string{string(claim.UID)},
	}
}

// waitingForCapacityEvent reports why the VM of a Claim of a static NodePool is not launched yet.
func waitingForCapacityEvent(claim *karpv1.NodeClaim, cause error) events.Event {
	return events.Event{
		InvolvedObject: claim,
		Type:           corev1.EventTypeWarning,
		Reason:         v1alpha1.EventWaitingForCapacity,
		Message:        cause.Error(),
		DedupeValues:   []string{string(claim.UID)},
	}
}
