// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"
)

// Scene is the content of the live view.
type Scene struct {
	Elapsed  time.Duration
	Steps    []Step
	Headline string
	State    State
	Events   []Event
}

// Step is a step of the tour.
type Step struct {
	Title string
	State StepState
	Took  time.Duration
}

// StepState is the state of a step.
type StepState int

// States of a step.
const (
	Waiting StepState = iota
	Running
	Done
	Failed
)

// Event is a line of the event list.
type Event struct {
	At    time.Duration
	Style style
	Text  string
}

func (e Event) line() line {
	return styled(clock(e.At)+"  ", dim).in(e.Style, e.Text)
}

// clock formats minutes and seconds.
func clock(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// seconds formats a duration in seconds.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

const (
	minEvents = 4
	maxEvents = 14
)

// Frame lays out the scene for a window. It never has more rows than the window: the event
// list shrinks first, then the VMs.
func (s Scene) Frame(width, height int) []line {
	head := []line{s.title(width), s.progress(), text(""), styled(s.Headline, bold), text("")}
	tail := []line{text(""), s.State.pods()}
	rows := height - 1 - len(head) - len(tail) // one row for the cursor
	events := min(max(minEvents, rows-1-len(s.State.hosts())), maxEvents, len(s.Events))
	hosts := fit(s.State.hosts(), rows-1-events)
	frame := append(append(head, hosts...), tail...)
	if events > 0 {
		frame = append(frame, text(""))
		for _, event := range s.Events[len(s.Events)-events:] {
			frame = append(frame, event.line())
		}
	}
	if len(frame) > height-1 && height > 1 {
		frame = frame[:height-1]
	}
	return frame
}

// fit omits lines and shows how many.
func fit(lines []line, rows int) []line {
	if len(lines) <= rows || rows < 1 {
		return lines
	}
	hidden := len(lines) - rows + 1
	return append(lines[:rows-1:rows-1], styled(fmt.Sprintf("  … %d more lines; a taller window shows them", hidden), dim))
}

func (s Scene) title(width int) line {
	l := styled("karpenter-provider-proxmox", bold).in(dim, " demo: pending pods become Proxmox VMs")
	at := clock(s.Elapsed)
	if gap := width - l.width() - len(at); gap > 1 {
		l = l.and(strings.Repeat(" ", gap))
	} else {
		l = l.and("  ")
	}
	return l.in(dim, at)
}

func (s Scene) progress() line {
	var l line
	for i, step := range s.Steps {
		if i > 0 {
			l = l.in(dim, "   ")
		}
		switch step.State {
		case Waiting:
			l = l.in(dim, "○ "+step.Title)
		case Running:
			l = l.in(cyan, "▶ "+step.Title)
		case Done:
			l = l.in(green, "✓ "+step.Title+" "+seconds(step.Took))
		case Failed:
			l = l.in(red, "✗ "+step.Title)
		}
	}
	return l
}

// hosts returns the lines of each host with its VMs.
func (s State) hosts() []line {
	var out []line
	for _, host := range s.Hosts {
		state := styled(pad(host.Name, 7), bold)
		if host.Up {
			state = state.in(green, "up    ")
		} else {
			state = state.in(red, "DOWN  ")
		}
		state = append(state, bar(host.UsedCPUs, host.CPUs)...)
		out = append(out, state.in(dim, fmt.Sprintf("  %d of %d CPUs in VMs", host.UsedCPUs, host.CPUs)))
		branch := len(out)
		for _, vm := range s.VMs {
			if vm.Host == host.Name {
				out = append(out, append(text("  ├ "), s.vm(vm)...))
			}
		}
		if last := len(out) - 1; last >= branch {
			out[last][0].text = "  └ "
		}
	}
	return out
}

// bar returns a gauge of twelve cells.
func bar(used, total int) line {
	const cells = 12
	full := 0
	if total > 0 {
		full = min(cells, (used*cells+total-1)/total)
	}
	return styled(strings.Repeat("■", full), blue).in(dim, strings.Repeat("·", cells-full))
}

func (s State) vm(vm VM) line {
	l := text("VM ").in(bold, pad(fmt.Sprint(vm.VMID), 7)).
		in(dim, pad(vm.Type, 15)).
		and(" ").in(vm.Phase.style(), pad(string(vm.Phase), 11))
	if vm.ReadyAfter > 0 {
		l = l.in(dim, pad("in "+seconds(vm.ReadyAfter), 9))
	} else {
		l = l.and(pad("", 9))
	}
	for _, pod := range s.Pods {
		if pod.Node == vm.Name && vm.Name != "" {
			l = append(l, pod.dot())
		}
	}
	return l
}

func (s State) pods() line {
	l := styled(pad("pods", 7), bold)
	running, other := 0, 0
	for _, pod := range s.Pods {
		switch {
		case pod.Deleting:
		case pod.Ready:
			running++
		default:
			other++
		}
	}
	l = l.in(green, fmt.Sprintf("%d running", running))
	if other > 0 {
		l = l.in(yellow, fmt.Sprintf("   %d waiting ", other))
		for _, pod := range s.Pods {
			if pod.Node == "" && !pod.Deleting {
				l = append(l, pod.dot())
			}
		}
	}
	return l
}

// dot returns the symbol of a pod.
func (p Pod) dot() span {
	switch {
	case p.Deleting:
		return span{"×", dim}
	case p.Ready:
		return span{"●", green}
	}
	return span{"○", yellow}
}
