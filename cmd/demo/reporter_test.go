// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

func TestReporter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	report := NewReporter(&Screen{out: &out})
	report.Step(1, 1, "scale up")
	report.Headline("%d pods wait", 6)
	vm := fleet.VM{UID: "uid", Claim: "node-a", Host: "pve1", VMID: 20001, Type: "c1.4VCPU-8GB"}
	for _, phase := range []fleet.Phase{
		fleet.Planned, fleet.Cloning, fleet.Configured, fleet.Booting, fleet.Joined, fleet.Ready, fleet.Ready, fleet.NotReady, fleet.Ready, fleet.Stopped, fleet.NotReady, fleet.Ready, fleet.Deleting,
	} {
		vm.Phase = phase
		report.Observe(State{Map: fleet.Map{VMs: []fleet.VM{vm}}})
	}
	report.Map(fleet.Map{Hosts: []fleet.Host{{Region: region, Name: "pve1"}}, VMs: []fleet.VM{{Region: region, Host: "pve1", VMID: 20001}}})
	report.Observe(State{})
	want := strings.Join([]string{
		"1/1  scale up", "6 pods wait", "claim node-a becomes VM 20001", "cloned on pve1", "boots from its ISO",
		"node-a is Ready on pve1", "node-a is NotReady", "node-a is Ready again", "has stopped", "was restarted", "node-a is Ready again", "Karpenter deletes node node-a",
		"home/pve1  up", "└ VM 20001", "VM 20001 and its volumes were deleted",
	}, ".*")
	g := NewWithT(t)
	g.Expect(out.String()).To(And(MatchRegexp("(?s)"+want), Not(ContainSubstring("\x1b"))))
	g.Expect(report.Joined()).To(ConsistOf("node-a"))
}

func TestSummary(t *testing.T) {
	t.Parallel()
	s := &Summary{}
	s.Add("short", 1200*time.Millisecond)
	s.AddNote("a longer line", "3 of 3")
	g, lines := NewWithT(t), s.Lines()
	g.Expect(lines).To(HaveLen(4))
	g.Expect(lines[1].Render(0, false)).To(Equal("  short          1.2s"))
	g.Expect(lines[2].Render(0, false)).To(Equal("  a longer line  3 of 3"))
}
