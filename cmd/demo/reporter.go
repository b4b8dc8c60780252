// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Reporter turns what is observed into what people see: it keeps the scene,
// finds out what changed and tells it.
type Reporter struct {
	screen *Screen
	began  time.Time

	mu    sync.Mutex
	scene Scene
	known map[string]*history // by claim UID
	nodes []string            // all that ever joined
}

// history is what was told of a claim already.
type history struct {
	first      time.Time
	phase      Phase
	told       bool
	readyAfter time.Duration
	vm         VM
}

// NewReporter starts the clock.
func NewReporter(screen *Screen) *Reporter {
	return &Reporter{screen: screen, began: time.Now(), known: map[string]*history{}}
}

// Event adds a line to the ticker, or prints it where there is no live view.
func (r *Reporter) Event(st style, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event(st, format, args...)
}

func (r *Reporter) event(st style, format string, args ...any) {
	event := Event{At: time.Since(r.began), Style: st, Text: fmt.Sprintf(format, args...)}
	r.scene.Events = append(r.scene.Events, event)
	if extra := len(r.scene.Events) - 2*mostEvents; extra > 0 {
		r.scene.Events = r.scene.Events[extra:]
	}
	if !r.screen.Live() {
		r.screen.Print(event.line())
	}
}

// Headline says what is going on now.
func (r *Reporter) Headline(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scene.Headline = fmt.Sprintf(format, args...)
	if !r.screen.Live() {
		r.screen.Print(styled("      "+r.scene.Headline, bold))
	}
}

// Steps are the titles of the tour.
func (r *Reporter) Steps(titles ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, title := range titles {
		r.scene.Steps = append(r.scene.Steps, Step{Title: title})
	}
}

// Step moves a step on.
func (r *Reporter) Step(i int, state StepState, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scene.Steps[i].State, r.scene.Steps[i].Took = state, took
	if !r.screen.Live() && state == Running {
		r.screen.Print(text(""))
		r.screen.Print(styled(fmt.Sprintf("%d/%d  %s", i+1, len(r.scene.Steps), r.scene.Steps[i].Title), cyan))
	}
}

// Observe takes in a new look at the world and redraws.
func (r *Reporter) Observe(w World) {
	r.mu.Lock()
	seen := map[string]bool{}
	for i := range w.VMs {
		seen[w.VMs[i].UID] = true
		w.VMs[i].ReadyAfter = r.vm(w.VMs[i])
	}
	for uid, h := range r.known {
		switch {
		case seen[uid] || h.phase == "":
			continue
		case h.vm.VMID == 0:
			// It was refused before it had a VM: there was no room, or no class.
			r.event(dim, "claim %s got no VM and is gone; kubectl get events tells why", h.vm.Name)
		default:
			r.event(dim, "VM %d and everything of it is gone from %s", h.vm.VMID, h.vm.Host)
		}
		delete(r.known, uid)
	}
	r.scene.World = w
	r.scene.Elapsed = time.Since(r.began)
	scene := r.scene
	r.mu.Unlock()
	r.screen.Draw(scene)
}

// vm tells what happened to a VM since the last look.
func (r *Reporter) vm(vm VM) time.Duration {
	if vm.UID == "" {
		return 0
	}
	h, ok := r.known[vm.UID]
	if !ok {
		h = &history{first: time.Now()}
		r.known[vm.UID] = h
	}
	if !h.told && vm.VMID != 0 && vm.Type != "" {
		h.told = true
		r.event(cyan, "Karpenter wants a %s on %s: claim %s becomes VM %d", vm.Type, vm.Host, vm.Name, vm.VMID)
	}
	h.vm = vm
	if vm.Phase == h.phase {
		return h.readyAfter
	}
	before := h.phase
	h.phase = vm.Phase
	if vm.Phase == Joined || vm.Phase == Ready {
		r.joined(vm.Name)
	}
	again := h.readyAfter > 0
	if vm.Phase == Ready && !again {
		h.readyAfter = time.Since(h.first)
	}
	r.tell(vm, before, h.readyAfter, again)
	return h.readyAfter
}

// tell says what a VM's new phase means.
func (r *Reporter) tell(vm VM, before Phase, readyAfter time.Duration, again bool) {
	switch vm.Phase {
	case Cloning:
		r.event(plain, "VM %d is being cloned on %s", vm.VMID, vm.Host)
	case Booting:
		r.event(plain, "VM %d boots from its own ISO", vm.VMID)
	case Ready:
		if again {
			r.event(green, "node %s is Ready again", vm.Name)
			break
		}
		r.event(green, "node %s is Ready on %s, %s after Karpenter's decision", vm.Name, vm.Host, seconds(readyAfter))
	case NotReady:
		if before == NoPower {
			r.event(plain, "VM %d on %s was started again", vm.VMID, vm.Host)
			break
		}
		r.event(red, "node %s is NotReady", vm.Name)
	case NoPower:
		r.event(red, "VM %d on %s has lost power", vm.VMID, vm.Host)
	case Leaving:
		why := ""
		if vm.Why != "" {
			why = " (" + vm.Why + ")"
		}
		if readyAfter == 0 && !slices.Contains(r.nodes, vm.Name) {
			r.event(red, "claim %s is given up before it became a node%s; kubectl get events tells why", vm.Name, why)
			break
		}
		r.event(yellow, "Karpenter gives node %s back%s", vm.Name, why)
	case Planned, Prepared, Joined:
	}
}

// joined notes a Node for the check at the end.
func (r *Reporter) joined(name string) {
	if !slices.Contains(r.nodes, name) {
		r.nodes = append(r.nodes, name)
	}
}

// Joined are the names of all Nodes that were seen.
func (r *Reporter) Joined() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.nodes)
}

// ReadyTimes are the times from a claim to its Ready Node, of all VMs there are.
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
