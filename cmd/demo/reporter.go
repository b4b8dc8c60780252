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

// Reporter keeps the scene, detects changes between observations and reports them.
type Reporter struct {
	screen *Screen
	began  time.Time

	mu    sync.Mutex
	scene Scene
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

// Event adds a line to the event list, or prints it if there is no live view.
func (r *Reporter) Event(st terminal.Style, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event(st, format, args...)
}

func (r *Reporter) event(st terminal.Style, format string, args ...any) {
	event := Event{At: time.Since(r.began), Style: st, Text: fmt.Sprintf(format, args...)}
	r.scene.Events = append(r.scene.Events, event)
	if extra := len(r.scene.Events) - 2*maxEvents; extra > 0 {
		r.scene.Events = r.scene.Events[extra:]
	}
	if !r.screen.Live() {
		r.screen.Print(event.line())
	}
}

// Headline sets the headline.
func (r *Reporter) Headline(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scene.Headline = fmt.Sprintf(format, args...)
	if !r.screen.Live() {
		r.screen.Print(terminal.Styled("      "+r.scene.Headline, terminal.Bold))
	}
}

// Steps adds the steps of the tour.
func (r *Reporter) Steps(titles ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, title := range titles {
		r.scene.Steps = append(r.scene.Steps, Step{Title: title})
	}
}

// Step changes the state of a step.
func (r *Reporter) Step(i int, state StepState, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scene.Steps[i].State, r.scene.Steps[i].Took = state, took
	if !r.screen.Live() && state == Running {
		r.screen.Print(terminal.Text(""))
		r.screen.Print(terminal.Styled(fmt.Sprintf("%d/%d  %s", i+1, len(r.scene.Steps), r.scene.Steps[i].Title), terminal.Cyan))
	}
}

// Observe updates the scene with new state, reports changes and redraws.
func (r *Reporter) Observe(s State) {
	r.mu.Lock()
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
	r.scene.State = s
	r.scene.Elapsed = time.Since(r.began)
	scene := r.scene
	r.mu.Unlock()
	r.screen.Draw(scene)
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
