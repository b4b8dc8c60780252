// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ReasonType is why a Host is kept awake or woken.
type ReasonType string

// Types of reasons, in the order of guards.
const (
	NotOnline            ReasonType = "NotOnline"
	FactsUnknown         ReasonType = "FactsUnknown"
	InMaintenance        ReasonType = "InMaintenance"
	InUse                ReasonType = "InUse"
	OtherCluster         ReasonType = "OtherKubernetesCluster"
	GuestRunning         ReasonType = "GuestRunning"
	GuestStartsOnBoot    ReasonType = "GuestStartsOnBoot"
	HighAvailability     ReasonType = "HighAvailability"
	CephDaemon           ReasonType = "CephDaemon"
	Replication          ReasonType = "Replication"
	BackupDue            ReasonType = "BackupDue"
	TaskRunning          ReasonType = "TaskRunning"
	OnlyTemplate         ReasonType = "OnlyTemplate"
	StorageExported      ReasonType = "StorageExported"
	NoWakeAddress        ReasonType = "NoWakeAddress"
	OutsideSleepWindow   ReasonType = "OutsideSleepWindow"
	NotIdleLongEnough    ReasonType = "NotIdleLongEnough"
	InsufficientCapacity ReasonType = "InsufficientCapacity"
	MinimumAwake         ReasonType = "MinimumAwake"
	QuorumRequired       ReasonType = "QuorumRequired"
)

// Reason is why a Host is kept awake or woken.
type Reason struct {
	Type    ReasonType
	Message string
}

// guards keep a Host awake for which they return a message.
var guards = []struct {
	reason ReasonType
	check  func(*plan, Host) string
}{
	{FactsUnknown, listed("not known: %s", func(h Host) []string { return h.Unknown })},
	{InMaintenance, func(_ *plan, h Host) string { return h.Maintenance }},
	{InUse, listed("VMs of this Kubernetes cluster: %s", func(h Host) []string { return h.VMs })},
	{OtherCluster, listed("VMs of other Kubernetes clusters: %s", func(h Host) []string { return h.OtherVMs })},
	{GuestRunning, listed("guests that run: %s", func(h Host) []string { return h.Running })},
	{GuestStartsOnBoot, listed("guests that start with the host: %s", func(h Host) []string { return h.OnBoot })},
	{HighAvailability, listed("HA services and rules: %s", func(h Host) []string { return h.HA })},
	{CephDaemon, listed("Ceph daemons: %s", func(h Host) []string { return h.Ceph })},
	{Replication, listed("replication jobs: %s", func(h Host) []string { return h.Replications })},
	{BackupDue, (*plan).dueBackups},
	{TaskRunning, listed("running tasks: %s", func(h Host) []string { return h.Tasks })},
	{OnlyTemplate, (*plan).onlyTemplates},
	{StorageExported, listed("it serves storages of the cluster: %s", func(h Host) []string { return h.Exports })},
	{NoWakeAddress, func(_ *plan, h Host) string {
		return textIf(h.WakeAddress == "", "its config in Proxmox has no MAC address for Wake-on-LAN")
	}},
	{OutsideSleepWindow, func(p *plan, h Host) string {
		return textIf(!h.Settings.SleepWindow.Contains(p.Now), "the time is outside of the setting sleepwindow")
	}},
	{NotIdleLongEnough, (*plan).idle},
	{InsufficientCapacity, func(p *plan, _ Host) string { return textIf(p.unmet, "VMs wait for capacity") }},
	{MinimumAwake, (*plan).minimum},
	{QuorumRequired, (*plan).quorum},
}

// ReasonTypes lists all types of reasons.
func ReasonTypes() []ReasonType {
	types := []ReasonType{NotOnline}
	for _, guard := range guards {
		types = append(types, guard.reason)
	}
	return types
}

// guard returns all Reasons to keep a Host awake. What is known about a Host that is not online
// is outdated.
func (p *plan) guard(host Host) []Reason {
	if host.State != Awake {
		return []Reason{{NotOnline, "the host is not online"}}
	}
	var reasons []Reason
	for _, guard := range guards {
		if message := guard.check(p, host); message != "" {
			reasons = append(reasons, Reason{guard.reason, message})
		}
	}
	return reasons
}

func textIf(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}

// maxListed limits the names in a message.
const maxListed = 5

func joined(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// listed returns a guard for Hosts that have any of these.
func listed(format string, names func(Host) []string) func(*plan, Host) string {
	return func(_ *plan, host Host) string {
		if found := names(host); len(found) > 0 {
			return fmt.Sprintf(format, joined(found))
		}
		return ""
	}
}

func (p *plan) dueBackups(host Host) string {
	var due []string
	for _, job := range slices.Sorted(maps.Keys(host.Backups)) {
		if host.Backups[job].Before(p.Now.Add(JobLead)) {
			due = append(due, job)
		}
	}
	return textIf(len(due) > 0, "backup jobs due within the next hour: "+joined(due))
}

// onlyTemplates keeps a Host awake if no other Host that remains awake has a template of the
// same name.
func (p *plan) onlyTemplates(host Host) string {
	others := map[string]bool{}
	for _, other := range p.Hosts {
		if other.Name != host.Name && p.awake[other.Name] {
			for _, name := range other.Templates {
				others[name] = true
			}
		}
	}
	only := slices.DeleteFunc(slices.Clone(host.Templates), func(name string) bool { return others[name] })
	return textIf(len(only) > 0, "no other host that remains awake has the templates: "+joined(only))
}

func (p *plan) idle(host Host) string {
	switch idle := p.Now.Sub(host.IdleSince); {
	case host.IdleSince.IsZero():
		return "" // another guard reports what uses it
	case idle < host.Settings.IdleTime:
		return fmt.Sprintf("idle since %s, less than the setting idletime (%s)", host.IdleSince.UTC().Format(time.RFC3339), host.Settings.IdleTime)
	}
	return ""
}

func (p *plan) minimum(Host) string {
	if len(p.awake) > p.minAwake() {
		return ""
	}
	return fmt.Sprintf("the setting minawake requires %d awake hosts", p.minAwake())
}

// quorum keeps a Host awake whose votes are needed. Hosts that boot do not vote yet.
func (p *plan) quorum(host Host) string {
	total, left := p.QDeviceVotes, 0
	if p.QDeviceConnected {
		left = p.QDeviceVotes
	}
	for _, other := range p.Hosts {
		total += other.Votes
		if p.awake[other.Name] && other.Name != host.Name {
			left += other.Votes
		}
	}
	if 2*left > total {
		return ""
	}
	return fmt.Sprintf("without it, %d of %d votes remain, which is no majority", left, total)
}
