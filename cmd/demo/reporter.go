// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

// Reporter detects changes between observations and prints them.
type Reporter struct {
	screen *Screen
	began  time.Time

	mu    sync.Mutex
	known map[string]*history // by claim UID
	nodes []string            // all nodes that ever joined
}

// history is what was reported about a claim.
type history struct {
	first      time.Time
	phase      fleet.Phase
	reported   bool
	readyAfter time.Duration
	vm         fleet.VM
}

// NewReporter returns a Reporter whose clock starts now.
func NewReporter(screen *Screen) *Reporter {
	return &Reporter{screen: screen, began: time.Now(), known: map[string]*history{}}
}

// Event prints what happened, and when.
func (r *Reporter) Event(st terminal.Style, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event(st, format, args...)
}

func (r *Reporter) event(st terminal.Style, format string, args ...any) {
	r.screen.Print(terminal.Styled(clock(time.Since(r.began))+"  ", terminal.Dim).In(st, fmt.Sprintf(format, args...)))
}

// Headline prints what happens next.
func (r *Reporter) Headline(format string, args ...any) {
	r.print(terminal.Styled("      "+fmt.Sprintf(format, args...), terminal.Bold))
}

// Step prints that a step of the tour starts.
func (r *Reporter) Step(n, steps int, title string) {
	r.print(terminal.Text(""), terminal.Styled(fmt.Sprintf("%d/%d  %s", n, steps, title), terminal.Cyan))
}

// Map prints the hosts with their VMs and pods, as the plugin's "top" does.
func (r *Reporter) Map(m fleet.Map) {
	lines := []terminal.Line{terminal.Text("")}
	for _, row := range terminal.Tree(m) {
		lines = append(lines, row.Line)
	}
	r.print(lines...)
}

func (r *Reporter) print(lines ...terminal.Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range lines {
		r.screen.Print(l)
	}
}

// clock formats minutes and seconds.
func clock(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// seconds formats a duration in seconds.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// Observe prints what changed since the last observation.
func (r *Reporter) Observe(s State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for i := range s.VMs {
		seen[s.VMs[i].UID] = true
		r.observeVM(s.VMs[i])
	}
	for uid, h := range r.known {
		switch {
		case seen[uid] || h.phase == "":
			continue
		case h.vm.VMID == 0:
			// It was deleted before it had a VM, for example for insufficient capacity.
			r.event(terminal.Dim, "claim %s was deleted without a VM; see kubectl get events", h.vm.Claim)
		default:
			r.event(terminal.Dim, "VM %d and its volumes were deleted from %s", h.vm.VMID, h.vm.Host)
		}
		delete(r.known, uid)
	}
}

// observeVM reports what happened to a VM since the last observation.
func (r *Reporter) observeVM(vm fleet.VM) {
	if vm.UID == "" {
		return
	}
	h, ok := r.known[vm.UID]
	if !ok {
		h = &history{first: time.Now()}
		r.known[vm.UID] = h
	}
	if !h.reported && vm.VMID != 0 && vm.Type != "" {
		h.reported = true
		r.event(terminal.Cyan, "Karpenter requests a %s on %s: claim %s becomes VM %d", vm.Type, vm.Host, vm.Claim, vm.VMID)
	}
	h.vm = vm
	if vm.Phase == h.phase {
		return
	}
	before := h.phase
	h.phase = vm.Phase
	if vm.Phase == fleet.Joined || vm.Phase == fleet.Ready {
		r.addJoined(vm.Claim)
	}
	wasReady := h.readyAfter > 0
	if vm.Phase == fleet.Ready && !wasReady {
		h.readyAfter = time.Since(h.first)
	}
	r.reportPhase(vm, before, h.readyAfter, wasReady)
}

// reportPhase reports a VM's new phase.
func (r *Reporter) reportPhase(vm fleet.VM, before fleet.Phase, readyAfter time.Duration, wasReady bool) {
	switch vm.Phase {
	case fleet.Cloning:
		r.event(terminal.Plain, "VM %d is being cloned on %s", vm.VMID, vm.Host)
	case fleet.Booting:
		r.event(terminal.Plain, "VM %d boots from its ISO", vm.VMID)
	case fleet.Ready:
		if wasReady {
			r.event(terminal.Green, "node %s is Ready again", vm.Claim)
			break
		}
		r.event(terminal.Green, "node %s is Ready on %s, %s after Karpenter's decision", vm.Claim, vm.Host, seconds(readyAfter))
	case fleet.NotReady:
		if before == fleet.Stopped {
			r.event(terminal.Plain, "VM %d on %s was restarted", vm.VMID, vm.Host)
			break
		}
		r.event(terminal.Red, "node %s is NotReady", vm.Claim)
	case fleet.Stopped:
		r.event(terminal.Red, "VM %d on %s has stopped", vm.VMID, vm.Host)
	case fleet.Deleting:
		why := ""
		if vm.Reason != "" {
			why = " (" + vm.Reason + ")"
		}
		if readyAfter == 0 && !slices.Contains(r.nodes, vm.Claim) {
			r.event(terminal.Red, "claim %s is deleted before it became a node%s; see kubectl get events", vm.Claim, why)
			break
		}
		r.event(terminal.Yellow, "Karpenter deletes node %s%s", vm.Claim, why)
	case fleet.Waiting, fleet.Planned, fleet.Configured, fleet.Joined, fleet.Orphaned:
	}
}

// addJoined records a Node for the check at the end.
func (r *Reporter) addJoined(name string) {
	if !slices.Contains(r.nodes, name) {
		r.nodes = append(r.nodes, name)
	}
}

// Joined returns the names of all observed Nodes.
func (r *Reporter) Joined() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.nodes)
}

// ReadyTimes returns the times from a claim to its ready Node for all existing VMs.
func (r *Reporter) ReadyTimes() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []time.Duration
	for _, h := range r.known {
		if h.readyAfter > 0 {
			out = append(out, h.readyAfter)
		}
	}
	return out
}
