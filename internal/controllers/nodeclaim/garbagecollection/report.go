// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// Kinds of orphans.
const (
	kindVM        = "vm"
	kindBootDrive = "boot-drive"
	kindToken     = "join-token"
	kindNode      = "node"
)

// eventInterval is how often an orphan that is kept is reported.
const eventInterval = 15 * time.Minute

type metrics struct {
	orphans *prometheus.GaugeVec
	deleted *prometheus.CounterVec
	blocked prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	const namespace, subsystem = "karpenter", "proxmox"
	m := &metrics{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "orphans",
			Help: "Orphaned VMs: their NodeClaim has not existed for the grace period.",
		}, []string{"kind"}),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "orphans_deleted_total",
			Help: "Orphans that were deleted.",
		}, []string{"kind"}),
		blocked: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "orphan_deletions_blocked_total",
			Help: "Reconciles in which no orphan was deleted because there were too many.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(m.orphans, m.deleted, m.blocked)
	}
	return m
}

// missingClaim returns the object of events on a Claim that does not exist.
func missingClaim(vm instance.VM) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name, claim.UID = vm.Claim, types.UID(vm.ClaimUID)
	return claim
}

func orphanFoundEvent(vm instance.VM) events.Event {
	return events.Event{
		InvolvedObject: missingClaim(vm), Type: corev1.EventTypeWarning, Reason: v1alpha1.EventOrphanedVM,
		Message:      fmt.Sprintf("VM %d on host %s of region %s no longer has a NodeClaim; to delete it, run: %s", vm.VMID, vm.Host, vm.Region, destroyCommand(vm)),
		DedupeValues: []string{vm.ClaimUID}, DedupeTimeout: eventInterval,
	}
}

func orphanBlockedEvent(vm instance.VM, blocked *instance.BlockedError) events.Event {
	return events.Event{
		InvolvedObject: missingClaim(vm), Type: corev1.EventTypeWarning, Reason: blocked.Reason,
		Message:      "VM no longer has a NodeClaim, but cannot be deleted: " + blocked.Message,
		DedupeValues: []string{vm.ClaimUID, blocked.Reason}, DedupeTimeout: eventInterval,
	}
}

func orphanDeletedEvent(vm instance.VM) events.Event {
	return events.Event{
		InvolvedObject: missingClaim(vm), Type: corev1.EventTypeNormal, Reason: v1alpha1.EventOrphanedVMDeleted,
		Message:      fmt.Sprintf("VM %d on host %s of region %s no longer had a NodeClaim and was deleted", vm.VMID, vm.Host, vm.Region),
		DedupeValues: []string{vm.ClaimUID},
	}
}
