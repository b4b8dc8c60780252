// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// What the collector removes.
const (
	kindVM        = "vm"
	kindBootDrive = "boot-drive"
	kindToken     = "join-token"
	kindNode      = "node"
)

type metrics struct {
	orphans *prometheus.GaugeVec
	removed *prometheus.CounterVec
	braked  prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	const namespace, subsystem = "karpenter", "proxmox"
	m := &metrics{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "orphans",
			Help: "Things on Proxmox whose claim has been gone for the grace period.",
		}, []string{"kind"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "orphans_removed_total",
			Help: "Things that were removed because their claim was gone.",
		}, []string{"kind"}),
		braked: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "orphan_deletions_blocked_total",
			Help: "Looks at which nothing was removed because too much looked orphaned at once.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(m.orphans, m.removed, m.braked)
	}
	return m
}

// claimOf stands for the Claim that is gone: its events can still be found by name.
func claimOf(vm instance.VM) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name, claim.UID = vm.Name, types.UID(vm.ClaimUID)
	return claim
}

func orphanFound(vm instance.VM) events.Event {
	return events.Event{
		InvolvedObject: claimOf(vm), Type: corev1.EventTypeWarning, Reason: "OrphanedVM",
		Message:      fmt.Sprintf("VM %d on host %s of region %s has no claim any more; to remove it, run: %s", vm.VMID, vm.Host, vm.Region, destroy(vm)),
		DedupeValues: []string{vm.ClaimUID},
	}
}

func orphanRemoved(vm instance.VM) events.Event {
	return events.Event{
		InvolvedObject: claimOf(vm), Type: corev1.EventTypeNormal, Reason: "OrphanedVMDeleted",
		Message:      fmt.Sprintf("VM %d on host %s of region %s had no claim any more and was removed", vm.VMID, vm.Host, vm.Region),
		DedupeValues: []string{vm.ClaimUID},
	}
}
