// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

func TestBar(t *testing.T) {
	t.Parallel()
	for usage, want := range map[fleet.Usage]string{
		{Total: 10}: "··········",
		{VMs: 3}:    "··········", // the total is unknown
		{Total: 10, VMs: 4, Guests: 2, Reserved: 1}:   "■■■■□□▒···",
		{Total: 1000, VMs: 1, Guests: 1, Reserved: 1}: "■□▒·······",
		{Total: 10, VMs: 10}:                          "■■■■■■■■■■",
		{Total: 10, VMs: 6, Guests: 8, Reserved: 3}:   "■■■■■■□□□□",
	} {
		NewWithT(t).Expect(terminal.Bar(usage, 10).Render(0, false)).To(Equal(want), "%+v", usage)
	}
}

// Messages of other users contain no line breaks and commands of the terminal.
func TestRender(t *testing.T) {
	t.Parallel()
	line := terminal.Text("storage is full\n\x1b]0;title\x07").In(terminal.Red, "\x1b[2J")
	NewWithT(t).Expect(line.Render(0, true)).To(Equal("storage is full  ]0;title \x1b[31m [2J\x1b[0m"))
}

// Names that differ only at their end must not be cut.
func TestTreeLongNames(t *testing.T) {
	t.Parallel()
	m := fleet.Map{Hosts: []fleet.Host{{Region: "datacenter-1", Name: "proxmox-rack-7-node-01", Memory: fleet.Usage{Total: 12345 << 30, VMs: 12000 << 30}}}}
	m.VMs = []fleet.VM{{Region: m.Hosts[0].Region, Host: m.Hosts[0].Name, Type: "gpu-large.128VCPU-1024GB", NodePool: "machine-learning-batch", Phase: fleet.Ready}}
	g, rows := NewWithT(t), terminal.Tree(m)
	g.Expect(rows[0].Line.Render(0, false)).To(And(ContainSubstring("datacenter-1/proxmox-rack-7-node-01 "), ContainSubstring("12000/12345 GiB")))
	g.Expect(rows[1].Line.Render(0, false)).To(And(ContainSubstring("gpu-large.128VCPU-1024GB "), ContainSubstring("machine-learning-batch ")))
}

// TestTree checks that VMs of unknown hosts are shown too, and that hosts that were shut down to save energy are not shown as
// offline.
func TestTree(t *testing.T) {
	t.Parallel()
	m := fleet.Map{
		Hosts: []fleet.Host{
			{Region: "home", Name: "pve1"}, {Region: "home", Name: "pve2", OutOfService: "InMaintenance"}, {Region: "home", Name: "pve3", Unusable: "no size"},
			{Name: "pve4", Sleep: "Asleep"}, {Name: "pve5", Sleep: "Waking"}, {Name: "pve6", Sleep: "ShuttingDown"},
			{Name: "pve7", Sleep: "WakeFailed", OutOfService: "Offline"},
		},
		VMs: []fleet.VM{{Region: "home", Host: "pve1", VMID: 20001}, {Region: "home", Host: "pve1", VMID: 20002}, {Claim: "a", Phase: fleet.Planned}},
	}
	var lines []string
	for _, row := range terminal.Tree(m) {
		lines = append(lines, strings.Join(strings.Fields(row.Line.Render(0, false))[:3], " "))
	}
	NewWithT(t).Expect(lines).To(HaveExactElements(
		"home/pve1 up CPUs", "├ VM 20001", "└ VM 20002", "home/pve2 maintenance CPUs", "home/pve3 unusable CPUs",
		"/pve4 asleep CPUs", "/pve5 waking CPUs", "/pve6 going down", "/pve7 offline CPUs", "· VM -"))
}

func TestEnergy(t *testing.T) {
	t.Parallel()
	m := fleet.Map{Hosts: []fleet.Host{{Name: "pve1", Energy: declared.Energy{Watts: 70.4}}, {Name: "pve2", Energy: declared.Energy{Watts: 60.2, CostPerHour: 0.01}}, {Name: "pve3", Saved: declared.Energy{Watts: 50}}}}
	g := NewWithT(t)
	g.Expect(terminal.Header(m)[0].Render(0, false)).To(HaveSuffix("/month   power 131 W, 3.1 kWh/day, 0.24/day   saved 50 W, 1.2 kWh/day"))
	g.Expect(terminal.Header(fleet.Map{})[0].Render(0, false)).NotTo(ContainSubstring("power"))
	for n, want := range []bool{true, true, false} {
		var details string
		for _, line := range terminal.HostDetail(m.Hosts[n]) {
			details += line.Render(0, false)
		}
		g.Expect(strings.Contains(details, "estimated power: ")).To(Equal(want), "host %d", n)
	}
}
