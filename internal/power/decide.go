// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// JobLead is how long before a backup job its Hosts are kept awake, or woken.
const JobLead = time.Hour

// Action is what to do with a Host.
type Action string

// Actions.
const (
	Keep  Action = "Keep"
	Sleep Action = "Sleep"
	Wake  Action = "Wake"
)

// Decision is the Action for one Host. It has Reasons unless the Action is Sleep, or the Host
// is asleep and not needed.
type Decision struct {
	Host    string
	Action  Action
	Reasons []Reason
}

// Message returns the reasons as one text.
func (d Decision) Message() string {
	texts := make([]string, 0, len(d.Reasons))
	for _, reason := range d.Reasons {
		texts = append(texts, reason.Message)
	}
	return strings.Join(texts, "; ")
}

// plan is the state of a Region with the decisions so far.
type plan struct {
	Region
	// awake are the Hosts that are on and remain on.
	awake map[string]bool
	// wakes are the Reasons of Hosts to wake.
	wakes map[string][]Reason
	// on are the Hosts that are on or will be.
	on map[string]bool
}

// Decide returns a Decision for each Host that takes part or is asleep, in the order of the
// Hosts. Its decisions take each other into account: all of them can be carried out.
func Decide(region Region) []Decision {
	p := &plan{Region: region, awake: map[string]bool{}, wakes: map[string][]Reason{}, on: map[string]bool{}}
	for _, host := range region.Hosts {
		if host.State == Awake {
			p.awake[host.Name] = true
		}
		if host.State == Awake || host.State == Waking {
			p.on[host.Name] = true
		}
	}
	p.wakeForVMs()
	p.wakeForMinimum()
	p.wakeForQuorum()
	p.wakeForJobs()
	p.wakeForTemplates()
	p.wakeDisabled()
	decisions := p.sleep()
	out := make([]Decision, 0, len(region.Hosts))
	for _, host := range region.Hosts {
		switch {
		case !host.isDecided():
		case p.wakes[host.Name] != nil:
			out = append(out, Decision{Host: host.Name, Action: Wake, Reasons: p.wakes[host.Name]})
		default:
			out = append(out, decisions[host.Name])
		}
	}
	return out
}

// sleepers returns the Hosts that are asleep and not in maintenance. Those that use the least
// energy come first.
func (p *plan) sleepers() []Host {
	var out []Host
	for _, host := range p.Hosts {
		if host.State == Asleep && host.Maintenance == "" {
			out = append(out, host)
		}
	}
	slices.SortStableFunc(out, func(a, b Host) int { return cmp.Compare(a.Settings.WattsIdle, b.Settings.WattsIdle) })
	return out
}

// wake adds a Host to those that are woken.
func (p *plan) wake(host Host, reason ReasonType, message string) {
	p.on[host.Name] = true
	p.wakes[host.Name] = append(p.wakes[host.Name], Reason{reason, message})
}

// wakeForVMs wakes Hosts on which VMs are to be launched.
func (p *plan) wakeForVMs() {
	for _, host := range p.sleepers() {
		if len(host.VMs) > 0 {
			p.wake(host, InUse, "VMs to launch: "+joined(host.VMs))
		}
	}
}

// minAwake returns the minimum number of Hosts that stay awake: the largest value of the
// settings, and at least one.
func (p *plan) minAwake() int {
	least := 1
	for _, host := range p.Hosts {
		least = max(least, host.Settings.MinAwake)
	}
	return least
}

func (p *plan) wakeForMinimum() {
	on := len(p.on)
	for _, host := range p.sleepers() {
		if on >= p.minAwake() {
			return
		}
		if p.wakes[host.Name] == nil {
			p.wake(host, MinimumAwake, "fewer hosts are awake than the setting minawake requires")
			on++
		}
	}
}

// wakeForQuorum wakes Hosts while the votes of those that are on, or will be, are not enough.
func (p *plan) wakeForQuorum() {
	for _, host := range p.sleepers() {
		votes, largest := 0, 0
		for _, other := range p.Hosts {
			if p.on[other.Name] {
				votes, largest = votes+other.Votes, max(largest, other.Votes)
			}
		}
		if host.Votes > 0 && p.wakes[host.Name] == nil && !p.isQuorate(votes, largest) {
			p.wake(host, QuorumRequired, fmt.Sprintf("%d of %d votes are not enough while a host is offline that was not shut down to save energy", votes, p.totalVotes()))
		}
	}
}

// wakeDisabled wakes Hosts that are not to be shut down any more.
func (p *plan) wakeDisabled() {
	for _, host := range p.sleepers() {
		if host.Settings.Mode != declared.PowerEnabled {
			p.wake(host, NotEnabled, fmt.Sprintf("the setting powermanagement is %s", host.Settings.Mode))
		}
	}
}

func (p *plan) wakeForTemplates() {
	for _, host := range p.sleepers() {
		if message := p.pendingTemplates(host); message != "" {
			p.wake(host, TemplatePending, message)
		}
	}
}

func (p *plan) wakeForJobs() {
	for _, host := range p.sleepers() {
		if message := p.dueBackups(host); message != "" {
			p.wake(host, BackupDue, message)
		}
	}
}

// sleep decides about the Hosts that are not woken. Hosts that are only reported come last, so
// they do not keep others awake; those that use the most energy while they are idle come first.
func (p *plan) sleep() map[string]Decision {
	hosts := slices.Clone(p.Hosts)
	slices.SortStableFunc(hosts, func(a, b Host) int {
		switch enabled := a.Settings.Mode == declared.PowerEnabled; {
		case enabled == (b.Settings.Mode == declared.PowerEnabled):
			return cmp.Compare(b.Settings.WattsIdle, a.Settings.WattsIdle)
		case enabled:
			return -1
		}
		return 1
	})
	out := make(map[string]Decision, len(hosts))
	for _, host := range hosts {
		decision := Decision{Host: host.Name, Action: Keep}
		if host.State != Asleep {
			decision.Reasons = p.guard(host)
		}
		if host.State == Awake && host.isEnrolled() && len(decision.Reasons) == 0 {
			decision.Action = Sleep
			delete(p.awake, host.Name)
		}
		out[host.Name] = decision
	}
	return out
}
