// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// full returns a scene that does not fit into a small window.
func full() Scene {
	s := Scene{
		Elapsed: 83 * time.Second, Headline: "host pve2 loses power",
		Steps: []Step{{"scale up", Done, 4 * time.Second}, {"spread", Running, 0}, {"scale down", Waiting, 0}},
	}
	for h := range 3 {
		host := fmt.Sprintf("pve%d", h+1)
		s.State.Hosts = append(s.State.Hosts, fleet.Host{Region: region, Name: host, CPUs: fleet.Usage{Total: 16, VMs: int64(4 * h)}})
		for v := range 6 {
			name := fmt.Sprintf("node-%d-%d", h, v)
			pod := fleet.Pod{App: "web", Node: name, Ready: true}
			s.State.VMs = append(s.State.VMs, fleet.VM{
				Region: region, Host: host, VMID: 20000 + 10*h + v, Claim: name, Node: name, NodePool: "demo", Type: "c1.4VCPU-8GB", Phase: fleet.Ready,
				Timeline: []fleet.Step{{Name: "Initialized", After: time.Second}}, Pods: []fleet.Pod{pod},
			})
			s.State.Pods = append(s.State.Pods, Pod{Pod: pod})
		}
	}
	s.State.Hosts[1].OutOfService = "Offline"
	s.State.Pods = append(s.State.Pods, Pod{Pod: fleet.Pod{App: "web"}}, Pod{Pod: fleet.Pod{App: "web", Deleting: true, Node: "node-0-0"}})
	for i := range 40 {
		s.Events = append(s.Events, Event{At: time.Duration(i) * time.Second, Text: fmt.Sprintf("event %d %s", i, strings.Repeat("long ", 40))})
	}
	return s
}

func render(s Scene, width, height int, colors bool) []string {
	var out []string
	for _, l := range s.Frame(width, height) {
		out = append(out, l.Render(width, colors))
	}
	return out
}

func TestFrameSize(t *testing.T) {
	t.Parallel()
	for _, scene := range []Scene{full(), {}} {
		for width := 20; width <= 200; width += 7 {
			for height := 5; height <= 60; height++ {
				lines := render(scene, width, height, false)
				if len(lines) >= height {
					t.Fatalf("%dx%d: the frame has %d lines, want fewer than the window", width, height, len(lines))
				}
				for _, l := range lines {
					if n := utf8.RuneCountInString(l); n > width {
						t.Fatalf("%dx%d: a line has %d cells: %q", width, height, n, l)
					}
				}
			}
		}
	}
}

func TestFrameContent(t *testing.T) {
	t.Parallel()
	all := strings.Join(render(full(), 120, 60, false), "\n")
	for _, want := range []string{
		"1:23", "✓ scale up 4.0s", "▶ spread", "○ scale down", "host pve2 loses power",
		"home/pve2  offline", "home/pve3  up", "CPUs ■■■■■■······ 8/16", "VM 20025   c1.4VCPU-8GB  demo      Ready      in 1s    0.000/h   ●",
		"18 running", "1 waiting ○", "0:39  event 39",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the frame does not contain %q:\n%s", want, all)
		}
	}
	if strings.Contains(all, "\x1b") {
		t.Error("a frame without colors has escape sequences")
	}
	if colored := strings.Join(render(full(), 120, 60, true), ""); !strings.Contains(colored, "\x1b[31moffline") {
		t.Error("a host that is offline is not red")
	}
}

func TestPlainScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	report := NewReporter(&Screen{out: &out})
	report.Steps("scale up")
	report.Step(0, Running, 0)
	report.Headline("%d pods wait", 6)
	vm := fleet.VM{UID: "uid", Claim: "node-a", Host: "pve1", VMID: 20001, Type: "c1.4VCPU-8GB"}
	for _, phase := range []fleet.Phase{
		fleet.Planned, fleet.Cloning, fleet.Configured, fleet.Booting, fleet.Joined, fleet.Ready, fleet.Ready, fleet.NotReady, fleet.Ready, fleet.Stopped, fleet.NotReady, fleet.Ready, fleet.Deleting,
	} {
		vm.Phase = phase
		report.Observe(State{Map: fleet.Map{VMs: []fleet.VM{vm}}})
	}
	report.Observe(State{})
	want := []string{
		"1/1  scale up", "6 pods wait", "claim node-a becomes VM 20001", "cloned on pve1", "boots from its ISO",
		"node-a is Ready on pve1", "node-a is NotReady", "node-a is Ready again", "has stopped", "was restarted", "node-a is Ready again", "Karpenter deletes node node-a", "VM 20001 and its volumes were deleted",
	}
	rest := out.String()
	for _, w := range want {
		_, after, found := strings.Cut(rest, w)
		if !found {
			t.Fatalf("%q is missing or out of order in:\n%s", w, out.String())
		}
		rest = after
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("plain output has escape sequences: %q", out.String())
	}
	if joined := report.Joined(); len(joined) != 1 || joined[0] != "node-a" {
		t.Errorf("joined nodes are %v, want node-a once", joined)
	}
}

func TestLiveScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	screen := &Screen{out: &out, live: true, size: func() (int, int) { return 80, 24 }}
	screen.Draw(full())
	first := strings.Count(out.String(), "\n")
	out.Reset()
	screen.Draw(full())
	if up := fmt.Sprintf("\x1b[%dA", first); !strings.Contains(out.String(), up) {
		t.Errorf("the second frame does not go up the %d lines of the first", first)
	}
	out.Reset()
	screen.Close()
	if !strings.Contains(out.String(), "\x1b[?25h") {
		t.Error("the cursor is still hidden")
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	s := &Summary{}
	s.Add("short", 1200*time.Millisecond)
	s.AddNote("a longer line", "3 of 3")
	lines := s.Lines()
	if len(lines) != 4 || lines[1].Render(0, false) != "  short          1.2s" || lines[2].Render(0, false) != "  a longer line  3 of 3" {
		t.Errorf("the table is %q", lines)
	}
}
