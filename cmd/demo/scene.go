// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
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
	Style terminal.Style
	Text  string
}

func (e Event) line() terminal.Line {
	return terminal.Styled(clock(e.At)+"  ", terminal.Dim).In(e.Style, e.Text)
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
func (s Scene) Frame(width, height int) []terminal.Line {
	head := []terminal.Line{s.title(width), s.progress(), terminal.Text(""), terminal.Styled(s.Headline, terminal.Bold), terminal.Text("")}
	tail := []terminal.Line{terminal.Text(""), s.State.pods()}
	rows := height - 1 - len(head) - len(tail) // one row for the cursor
	events := min(max(minEvents, rows-1-len(s.State.hosts())), maxEvents, len(s.Events))
	hosts := terminal.Fit(s.State.hosts(), rows-1-events)
	frame := append(append(head, hosts...), tail...)
	if events > 0 {
		frame = append(frame, terminal.Text(""))
		for _, event := range s.Events[len(s.Events)-events:] {
			frame = append(frame, event.line())
		}
	}
	if len(frame) > height-1 && height > 1 {
		frame = frame[:height-1]
	}
	return frame
}

func (s Scene) title(width int) terminal.Line {
	l := terminal.Styled("karpenter-provider-proxmox", terminal.Bold).In(terminal.Dim, " demo: pending pods become Proxmox VMs")
	at := clock(s.Elapsed)
	if gap := width - l.Width() - len(at); gap > 1 {
		l = l.And(strings.Repeat(" ", gap))
	} else {
		l = l.And("  ")
	}
	return l.In(terminal.Dim, at)
}

func (s Scene) progress() terminal.Line {
	var l terminal.Line
	for i, step := range s.Steps {
		if i > 0 {
			l = l.In(terminal.Dim, "   ")
		}
		switch step.State {
		case Waiting:
			l = l.In(terminal.Dim, "○ "+step.Title)
		case Running:
			l = l.In(terminal.Cyan, "▶ "+step.Title)
		case Done:
			l = l.In(terminal.Green, "✓ "+step.Title+" "+seconds(step.Took))
		case Failed:
			l = l.In(terminal.Red, "✗ "+step.Title)
		}
	}
	return l
}

// hosts returns the lines of each host with its VMs.
func (s State) hosts() []terminal.Line {
	var out []terminal.Line
	for _, row := range terminal.Tree(s.Map) {
		out = append(out, row.Line)
	}
	return out
}

func (s State) pods() terminal.Line {
	l := terminal.Styled(terminal.Pad("pods", 7), terminal.Bold)
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
	l = l.In(terminal.Green, fmt.Sprintf("%d running", running))
	if other > 0 {
		l = l.In(terminal.Yellow, fmt.Sprintf("   %d waiting ", other))
		for _, pod := range s.Pods {
			if pod.Node == "" && !pod.Deleting {
				l = append(l, terminal.Dot(pod.Pod))
			}
		}
	}
	return l
}
