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
	NotOnline          ReasonType = "NotOnline"
	FactsUnknown       ReasonType = "FactsUnknown"
	InMaintenance      ReasonType = "InMaintenance"
	InUse              ReasonType = "InUse"
	OtherCluster       ReasonType = "OtherKubernetesCluster"
	GuestRunning       ReasonType = "GuestRunning"
	GuestStartsOnBoot  ReasonType = "GuestStartsOnBoot"
	HighAvailability   ReasonType = "HighAvailability"
	CephDaemon         ReasonType = "CephDaemon"
	Replication        ReasonType = "Replication"
	BackupDue          ReasonType = "BackupDue"
	TaskRunning        ReasonType = "TaskRunning"
	OnlyTemplate       ReasonType = "OnlyTemplate"
	TemplatePending    ReasonType = "TemplatePending"
	StorageExported    ReasonType = "StorageExported"
	OnlyURL            ReasonType = "OnlyURL"
	NoWakeAddress      ReasonType = "NoWakeAddress"
	PrivilegeMissing   ReasonType = "PrivilegeMissing"
	OutsideSleepWindow ReasonType = "OutsideSleepWindow"
	NotIdleLongEnough  ReasonType = "NotIdleLongEnough"
	MinimumAwake       ReasonType = "MinimumAwake"
	QuorumRequired     ReasonType = "QuorumRequired"
	// NotEnabled only wakes Hosts.
	NotEnabled ReasonType = "NotEnabled"
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
	{TemplatePending, (*plan).pendingTemplates},
	{StorageExported, listed("it serves storages of the cluster: %s", func(h Host) []string { return h.Exports })},
	{OnlyURL, (*plan).onlyURL},
	{NoWakeAddress, func(_ *plan, h Host) string {
		return textIf(h.WakeAddress == "", "its config in Proxmox has no MAC address for Wake-on-LAN")
	}},
	{PrivilegeMissing, func(_ *plan, h Host) string { return h.PrivilegeMissing }},
	{OutsideSleepWindow, func(p *plan, h Host) string {
		return textIf(!h.Settings.SleepWindow.Contains(p.Now), "the time is outside of the setting sleepwindow")
	}},
	{NotIdleLongEnough, (*plan).idle},
	{MinimumAwake, (*plan).minimum},
	{QuorumRequired, (*plan).quorum},
}

// ReasonTypes lists all types of reasons.
func ReasonTypes() []ReasonType {
	types := []ReasonType{NotOnline, NotEnabled}
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

func (p *plan) pendingTemplates(host Host) string {
	return textIf(len(host.PendingTemplates) > 0, "templates to build or delete: "+joined(host.PendingTemplates))
}

// onlyURL keeps a Host awake without which the controller could not reach the Cluster.
func (p *plan) onlyURL(host Host) string {
	left := slices.ContainsFunc(p.Endpoints, func(endpoint string) bool {
		return endpoint == "" || (endpoint != host.Name && p.awake[endpoint])
	})
	return textIf(slices.Contains(p.Endpoints, host.Name) && !left, "no other URL in the cloud config belongs to a host that remains awake")
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
	left, largest := 0, 0
	for _, other := range p.Hosts {
		if p.awake[other.Name] && other.Name != host.Name {
			left, largest = left+other.Votes, max(largest, other.Votes)
		}
	}
	switch {
	case p.isQuorate(left, largest):
		return ""
	case 2*(left+p.connectedVotes()) > p.totalVotes():
		return fmt.Sprintf("without it, %d of %d votes remain, which is no majority if another host fails, and a host is offline", left+p.connectedVotes(), p.totalVotes())
	}
	return fmt.Sprintf("without it, %d of %d votes remain, which is no majority", left+p.connectedVotes(), p.totalVotes())
}

// isQuorate reports whether votes of Hosts are enough. While a Host is offline that was not shut
// down to save energy, they must be enough without those of one more Host.
func (p *plan) isQuorate(votes, largest int) bool {
	if slices.ContainsFunc(p.Hosts, func(host Host) bool { return host.State == Offline && host.Votes > 0 }) {
		votes -= largest
	}
	return 2*(votes+p.connectedVotes()) > p.totalVotes()
}

func (p *plan) totalVotes() int {
	total := p.QDeviceVotes
	for _, host := range p.Hosts {
		total += host.Votes
	}
	return total
}

// connectedVotes returns the votes of the QDevice; 0 while it is not connected.
func (p *plan) connectedVotes() int {
	if p.QDeviceConnected {
		return p.QDeviceVotes
	}
	return 0
}
