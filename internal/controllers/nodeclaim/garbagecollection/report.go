// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
)

// Kinds of orphans.
const (
	kindVM        = "vm"
	kindBootDrive = "boot-drive"
	kindToken     = "join-token"
	kindNode      = "node"
)

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

// why returns why a VM is an orphan.
func why(vm deletion.Orphan) string {
	if vm.HasClaim {
		return "its NodeClaim has another VM"
	}
	return "its NodeClaim does not exist"
}

func orphanFoundEvent(vm deletion.Orphan) events.Event {
	return event.Lasting(event.Warning(missingClaim(vm.VM), v1alpha1.EventOrphanedVM,
		fmt.Sprintf("VM %d on host %s of region %s is an orphan: %s; to delete it, run: %s", vm.VMID, vm.Host, vm.Region, why(vm), vm.DestroyCommand())))
}

func orphanBlockedEvent(vm deletion.Orphan, blocked *instance.BlockedError) events.Event {
	return event.Lasting(event.Warning(missingClaim(vm.VM), blocked.Reason,
		fmt.Sprintf("VM is an orphan (%s), but cannot be deleted: %s", why(vm), blocked.Message), vm.ProviderID()))
}

func orphanDeletedEvent(vm deletion.Orphan) events.Event {
	return event.Normal(missingClaim(vm.VM), v1alpha1.EventOrphanedVMDeleted,
		fmt.Sprintf("VM %d on host %s of region %s was an orphan and was deleted: %s", vm.VMID, vm.Host, vm.Region, why(vm)))
}

func duplicateEvent(vms []instance.VM) events.Event {
	var places, commands []string
	for _, vm := range vms {
		places = append(places, fmt.Sprintf("%d on host %s of region %s", vm.VMID, vm.Host, vm.Region))
		commands = append(commands, vm.DestroyCommand())
	}
	return event.Lasting(event.Warning(missingClaim(vms[0]), v1alpha1.EventDuplicateVM,
		fmt.Sprintf("VMs %s have the ownership mark and the SMBIOS UUID of one NodeClaim, and none is deleted as an orphan; delete the one that is not the node, on its host: %s",
			strings.Join(places, " and "), strings.Join(commands, ", or: "))))
}
