// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Purpose is what a Host is needed for.
type Purpose uint8

// Purposes.
const (
	// Launch selects the Host for a new VM. A Host that sleeps is woken for it.
	Launch Purpose = 1 << iota
	// Start begins the requests of a launch, for which the Host must be awake.
	Start
	// Build creates, changes and deletes Templates.
	Build
	// Keep leaves the VMs on the Host, and restarts them.
	Keep
	// Request sends requests to the Host: reads, changes and deletions of single guests.
	Request
)

// Condition returns the condition of a Host with a reason.
func (h HostState) Condition(reason HostReason) (HostCondition, bool) {
	for _, c := range h.Conditions {
		if c.Reason == reason {
			return c, true
		}
	}
	return HostCondition{}, false
}

// Has reports whether a reason applies to the Host.
func (h HostState) Has(reason HostReason) bool {
	_, has := h.Condition(reason)
	return has
}

// Obstacle returns why the Host is not available for a purpose, with an empty reason if it is.
func (h HostState) Obstacle(purpose Purpose) HostCondition {
	for _, c := range h.Conditions {
		if blocked[c.Reason]&purpose != 0 {
			return c
		}
	}
	return HostCondition{}
}

// IsAvailable reports whether the Host is available for a purpose.
func (h HostState) IsAvailable(purpose Purpose) bool { return h.Obstacle(purpose).Reason == "" }

// conditionsOf returns what is the case for a listed Host, the most important first.
func conditionsOf(host observed.Host, limits declared.HostSettings, snapshot *observed.Snapshot, records declared.Records, failure error) []HostCondition {
	name := observed.HostName{Region: snapshot.Region, Host: host.Name}
	record := records.Sleeping[name]
	sleep, maintenance := record.SleepState(host.Online), records.Maintenance.Describe(name)
	if host.Maintenance {
		maintenance = "Proxmox HA maintenance"
	}
	var out []HostCondition
	add := func(applies bool, reason HostReason, message string, since time.Time) {
		if applies {
			out = append(out, HostCondition{reason, message, since})
		}
	}
	add(limits.Excluded, Excluded, "excluded by settings", time.Time{})
	add(isConclusive(failure), Unreachable, unreachableMessage(failure), time.Time{})
	add(failure != nil, PollFailed, "the last poll of the Proxmox cluster failed", time.Time{})
	add(!host.Online && sleep == declared.WakeFailed, NotAwake, "it was shut down to save energy and did not wake up in time", host.OfflineSince)
	add(!host.Online && !sleep.IsAvailable(), Offline, "offline", host.OfflineSince)
	add(sleep != "", Sleeping, "it was shut down to save energy", record.Since)
	add(!host.Online, Off, "off", host.OfflineSince)
	add(records.SleepingOutdated && (sleep != "" || limits.Power.Mode == declared.PowerEnabled || !host.IsUp()), PowerUnknown, records.SleepingFailure, time.Time{})
	add(maintenance != "", InMaintenance, "in maintenance ("+maintenance+")", host.OutOfServiceSince)
	add(maintenance == "" && (snapshot.MaintenanceUnknown || records.MaintenanceUnknown), MaintenanceUnknown, "", time.Time{})
	add(host.CPUs == 0 || host.MemoryBytes == 0, SizeUnknown,
		"Proxmox does not report its size: the token needs Sys.Audit on /nodes/"+host.Name, time.Time{})
	return out
}

// unreachableMessage omits the count of failures: conditions quote the text and would change with each poll.
func unreachableMessage(failure error) string {
	state := "been unreachable"
	if errors.Is(failure, proxmox.ErrNoQuorum) {
		state = "had no quorum"
	}
	if poll, ok := errors.AsType[*PollError](failure); ok {
		return fmt.Sprintf("the Proxmox cluster has %s since %s: %v", state, poll.Since.UTC().Format(time.RFC3339), poll.Err)
	}
	return ""
}

// isConclusive reports whether failed polls mean that a launch would fail too. A single
// failure may be transient, and removing offerings for it costs more than one failed
// launch.
func isConclusive(failure error) bool {
	poll, ok := errors.AsType[*PollError](failure)
	return ok && (poll.Count > 1 || errors.Is(failure, proxmox.ErrUnauthorized) || errors.Is(failure, proxmox.ErrNoQuorum))
}
