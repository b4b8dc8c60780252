// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// HostState is the capacity and availability of a Host.
type HostState struct {
	Region string
	Name   string
	// Size is the physical size of the Host, the limit for a single VM.
	Size observed.Amount
	// Allocatable is the total for all guests, as configured in the settings.
	Allocatable observed.Amount
	// Allocated is what guests use, Reserved what Reservations add to it.
	Allocated observed.Amount
	Reserved  observed.Amount
	// Free is Allocatable - Allocated - Reserved. It is negative if other users filled
	// the Host beyond our settings.
	Free observed.Amount
	// FreeDevices is the number of free PCI devices by mapping.
	FreeDevices map[string]int
	// Arch is the architecture of the Host as Kubernetes names it: amd64 or arm64.
	Arch string
	// PriceFactor multiplies the price of VMs on this Host.
	PriceFactor float64
	// Conditions are why the Host is not available for some purposes, the most important first; see Obstacle.
	Conditions []HostCondition
	// KeepsReserve is true if a VM on the Host must leave free what the largest Host holds; see
	// Failover.
	KeepsReserve bool
	// Power are the settings for power management.
	Power declared.PowerSettings
	// Sleep is the state of a Host that was shut down to save energy; empty if it was not.
	Sleep declared.SleepState
}

// StorageState is a storage of a Host with its free capacity.
type StorageState struct {
	proxmox.StorageRow
	// FreeBytes is the capacity below the high-water mark after Reservations. It is
	// negative above the mark.
	FreeBytes int64
	// ReservedBytes is what Reservations count on the storage.
	ReservedBytes int64
	// QueuedClones is the number of VMs whose clone to the storage waits or runs.
	QueuedClones int
}

// PollError is why the Snapshot of a Cluster is outdated.
type PollError struct {
	Region string
	// Since is the time of the first of Count consecutive failures.
	Since time.Time
	Count int
	Err   error
}

// Error omits Count: conditions quote the text and would change with each poll.
func (e *PollError) Error() string {
	return fmt.Sprintf("polling %s has failed since %s: %v", e.Region, e.Since.UTC().Format(time.RFC3339), e.Err)
}

func (e *PollError) Unwrap() error { return e.Err }

// HostReason is why a Host is not available for some purposes.
type HostReason string

// Reasons, the most important first: a purpose is refused for the first one that blocks it.
const (
	// Unlisted: no Snapshot lists the Host.
	Unlisted HostReason = "Unlisted"
	// Excluded: the settings exclude the Host.
	Excluded HostReason = "Excluded"
	// Unreachable: the last polls of the Cluster failed. Nothing is known about its Hosts.
	Unreachable HostReason = "Unreachable"
	// PollFailed: the last poll of the Cluster failed, which may be transient.
	PollFailed HostReason = "PollFailed"
	// NotAwake: the Host was shut down to save energy, and did not wake up in time.
	NotAwake HostReason = "NotAwake"
	// Offline: the Host is off, and was not shut down to save energy.
	Offline HostReason = "Offline"
	// Sleeping: the Host was shut down to save energy; see HostState.Sleep.
	Sleeping HostReason = "Sleeping"
	// Off: the Host is off, for whatever reason.
	Off HostReason = "Off"
	// PowerUnknown: the Host may be in another state than HostState.Sleep; see SetSleepingOutdated.
	PowerUnknown HostReason = "PowerUnknown"
	// InMaintenance: Proxmox or an administrator put the Host into maintenance. It may be offline
	// too, for example while it reboots.
	InMaintenance HostReason = "InMaintenance"
	// MaintenanceUnknown: not every source of maintenance could be read since the start, so the Host
	// may have been in maintenance before.
	MaintenanceUnknown HostReason = "MaintenanceUnknown"
	// SizeUnknown: Proxmox does not report the size of the Host.
	SizeUnknown HostReason = "SizeUnknown"
)

// blocked are the purposes for which a Host is not available for a reason.
var blocked = map[HostReason]Purpose{
	Unlisted:      Launch | Build | Keep | Request,
	Excluded:      Launch | Keep,
	Unreachable:   Launch | Build | Request,
	PollFailed:    Build,
	NotAwake:      Launch | Build,
	Offline:       Launch | Build | Keep | Request,
	Sleeping:      Start | Build,
	Off:           Build | Request,
	PowerUnknown:  Start | Build,
	InMaintenance: Launch | Keep,
	SizeUnknown:   Launch,
}

// HostCondition is a reason that applies to a Host.
type HostCondition struct {
	Reason HostReason
	// Message completes "the host is not available: ".
	Message string
	// Since is when Proxmox was first seen to report it; zero if it does not report it.
	Since time.Time
}
