// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"sync"
	"time"
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
	phase      Phase
	reported   bool
	readyAfter time.Duration
	vm         VM
}

// NewReporter returns a Reporter whose clock starts now.
func NewReporter(screen *Screen) *Reporter {
	return &Reporter{screen: screen, began: time.Now(), known: map[string]*history{}}
}

// Event adds a line to the event list, or prints it if there is no live view.
func (r *Reporter) Event(st style, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event(st, format, args...)
}

func (r *Reporter) event(st style, format string, args ...any) {
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
		r.screen.Print(styled("      "+r.scene.Headline, bold))
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
		r.screen.Print(text(""))
		r.screen.Print(styled(fmt.Sprintf("%d/%d  %s", i+1, len(r.scene.Steps), r.scene.Steps[i].Title), cyan))
	}
}

// Observe updates the scene with new state, reports changes and redraws.
func (r *Reporter) Observe(s State) {
	r.mu.Lock()
	seen := map[string]bool{}
	for i := range s.VMs {
		seen[s.VMs[i].UID] = true
		s.VMs[i].ReadyAfter = r.observeVM(s.VMs[i])
	}
	for uid, h := range r.known {
		switch {
		case seen[uid] || h.phase == "":
			continue
		case h.vm.VMID == 0:
			// It was deleted before it had a VM, for example for insufficient capacity.
			r.event(dim, "claim %s was deleted without a VM; see kubectl get events", h.vm.Name)
		default:
			r.event(dim, "VM %d and its volumes were deleted from %s", h.vm.VMID, h.vm.Host)
		}
		delete(r.known, uid)
	}
	r.scene.State = s
	r.scene.Elapsed = time.Since(r.began)
	scene := r.scene
	r.mu.Unlock()
	r.screen.Draw(scene)
}

// observeVM reports what happened to a VM since the last observation and returns how long its
// node took to become ready.
func (r *Reporter) observeVM(vm VM) time.Duration {
	if vm.UID == "" {
		return 0
	}
	h, ok := r.known[vm.UID]
	if !ok {
		h = &history{first: time.Now()}
		r.known[vm.UID] = h
	}
	if !h.reported && vm.VMID != 0 && vm.Type != "" {
		h.reported = true
		r.event(cyan, "Karpenter requests a %s on %s: claim %s becomes VM %d", vm.Type, vm.Host, vm.Name, vm.VMID)
	}
	h.vm = vm
	if vm.Phase == h.phase {
		return h.readyAfter
	}
	before := h.phase
	h.phase = vm.Phase
	if vm.Phase == Joined || vm.Phase == Ready {
		r.addJoined(vm.Name)
	}
	wasReady := h.readyAfter > 0
	if vm.Phase == Ready && !wasReady {
		h.readyAfter = time.Since(h.first)
	}
	r.reportPhase(vm, before, h.readyAfter, wasReady)
	return h.readyAfter
}

// reportPhase reports a VM's new phase.
func (r *Reporter) reportPhase(vm VM, before Phase, readyAfter time.Duration, wasReady bool) {
	switch vm.Phase {
	case Cloning:
		r.event(plain, "VM %d is being cloned on %s", vm.VMID, vm.Host)
	case Booting:
		r.event(plain, "VM %d boots from its ISO", vm.VMID)
	case Ready:
		if wasReady {
			r.event(green, "node %s is Ready again", vm.Name)
			break
		}
		r.event(green, "node %s is Ready on %s, %s after Karpenter's decision", vm.Name, vm.Host, seconds(readyAfter))
	case NotReady:
		if before == Stopped {
			r.event(plain, "VM %d on %s was restarted", vm.VMID, vm.Host)
			break
		}
		r.event(red, "node %s is NotReady", vm.Name)
	case Stopped:
		r.event(red, "VM %d on %s has stopped", vm.VMID, vm.Host)
	case Deleting:
		why := ""
		if vm.Why != "" {
			why = " (" + vm.Why + ")"
		}
		if readyAfter == 0 && !slices.Contains(r.nodes, vm.Name) {
			r.event(red, "claim %s is deleted before it became a node%s; see kubectl get events", vm.Name, why)
			break
		}
		r.event(yellow, "Karpenter deletes node %s%s", vm.Name, why)
	case Planned, Prepared, Joined:
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
