// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// plainEvents is the number of events without a terminal.
const plainEvents = 10

// Header returns the totals and the problems of regions, NodeClasses and NodePools.
func Header(m fleet.Map) []Line {
	pods := 0
	for _, vm := range m.VMs {
		pods += len(vm.Pods)
	}
	lines := []Line{
		Styled("Karpenter on Proxmox VE", Bold).In(Dim, fmt.Sprintf("   %s, %s, %s, %s   price ",
			plural(len(m.Hosts), "host"), plural(len(m.VMs), "VM"), plural(pods, "pod"), plural(len(m.Pending), "pending pod"))).
			And(prices(m.PricePerHour()) + energy(m)),
		Styled("■ VMs  □ other guests  ▒ reserved  · free      pods: ● ready  ○ not ready  × terminating", Dim),
	}
	for _, region := range m.Regions {
		if region.Problem != "" {
			lines = append(lines, Styled(region.Problem, Red))
		}
	}
	for _, problem := range m.Problems {
		lines = append(lines, Styled(problem, Yellow))
	}
	return lines
}

// energy returns the Energy of all Hosts; empty if the settings contain no watts.
func energy(m fleet.Map) string {
	text := ""
	used, saved := m.Energy()
	if used.Watts > 0 {
		text = "   power " + used.String()
	}
	if saved.Watts > 0 {
		text += "   saved " + saved.String()
	}
	return text
}

// prices formats a price per hour and per month. Prices have no currency.
func prices(perHour float64) string {
	return fmt.Sprintf("%.3f/h  %.2f/month", perHour, perHour*fleet.HoursPerMonth)
}

// nodePools returns the sum of each NodePool.
func nodePools(m fleet.Map) []Line {
	var lines []Line
	for _, pool := range m.NodePools {
		cost := prices(pool.PricePerHour)
		if pool.Energy.Watts > 0 {
			cost += "   power " + pool.Energy.String()
		}
		lines = append(lines, Text("  "+Pad(pool.Name, 20)).And(fmt.Sprintf("%s, %d CPUs, %s, %s   ",
			plural(pool.VMs, "VM"), pool.CPUs, gib(pool.MemoryBytes), plural(pool.Pods, "pod"))).In(Dim, cost))
	}
	return lines
}

// pending returns the pending pods with their reason.
func pending(m fleet.Map) []Line {
	var lines []Line
	for _, pod := range m.Pending {
		lines = append(lines, Styled("  "+pod.Namespace+"/"+pod.Name, Yellow).And("  "+pod.Reason))
	}
	return lines
}

// activity returns what Karpenter is doing now.
func activity(m fleet.Map) []Line {
	var lines []Line
	for _, what := range m.Activity {
		lines = append(lines, Text("  "+what))
	}
	return lines
}

// events returns the recent events, the newest first.
func events(m fleet.Map) []Line {
	var lines []Line
	for _, event := range m.Events {
		style := Plain
		if event.Warning {
			style = Yellow
		}
		lines = append(lines, Styled("  "+event.Time.UTC().Format(time.TimeOnly)+"  ", Dim).In(style, event.Reason).And("  "+event.Object+": "+event.Message))
	}
	return lines
}

// HostDetail returns everything about a Host except its VMs.
func HostDetail(host fleet.Host) []Line {
	lines := []Line{Styled("host "+hostName(host.Region, host.Name), Bold)}
	if host.Unusable != "" {
		lines = append(lines, Styled("  accepts no new VMs: "+host.Unusable, Yellow))
	}
	lines = append(lines, usageLine("CPUs", host.CPUs, 1, ""), usageLine("memory", host.Memory, 1<<30, " GiB"))
	for _, cell := range host.Cells {
		name := fmt.Sprintf("NUMA cell %d", cell.ID)
		lines = append(lines, usageLine(name+" CPUs", cell.CPUs, 1, ""), usageLine(name+" memory", cell.Memory, 1<<30, " GiB"))
	}
	for _, s := range host.Storages {
		l := append(Text("  "+Pad("storage "+s.Name, 22)), Bar(storageUsage(s), 24)...)
		l = l.And(fmt.Sprintf("  %s of %s used, %s reserved, %s free; disks of VMs: %s",
			gib(s.UsedBytes), gib(s.TotalBytes), gib(s.ReservedBytes), gib(max(s.FreeBytes, 0)), gib(s.VMBytes)))
		if s.Shared {
			l = l.In(Dim, " (shared)")
		}
		lines = append(lines, l)
	}
	if host.Energy.Watts > 0 {
		lines = append(lines, Styled("  estimated power: "+host.Energy.String(), Dim))
	}
	return append(lines, Styled(fmt.Sprintf("  other guests that run: %d", host.Guests), Dim))
}

func usageLine(name string, u fleet.Usage, unit int64, suffix string) Line {
	l := append(Text("  "+Pad(name, 22)), Bar(u, 24)...)
	return l.And(fmt.Sprintf("  VMs %d, other guests %d, reserved %d, total %d%s", u.VMs/unit, u.Guests/unit, u.Reserved/unit, u.Total/unit, suffix))
}

// VMDetail returns everything about a VM: its price, its launch and its pods.
func VMDetail(vm fleet.VM, now time.Time) []Line {
	name, age := "VM without VMID yet", ""
	if vm.VMID != 0 {
		name = fmt.Sprintf("VM %d on %s", vm.VMID, hostName(vm.Region, vm.Host))
	}
	if !vm.Created.IsZero() {
		age = now.Sub(vm.Created).Round(time.Second).String()
	}
	lines := []Line{
		Styled(name, Bold).And("   ").In(phaseStyle(vm.Phase), string(vm.Phase)).In(Yellow, "  "+vm.Reason),
		Text(fmt.Sprintf("  nodeclaim %s, nodepool %s, node %s, age %s", orNone(vm.Claim), orNone(vm.NodePool), orNone(vm.Node), orNone(age))),
		Text(fmt.Sprintf("  %s: %d CPUs, %s, price %s", orNone(vm.Type), vm.CPUs, gib(vm.MemoryBytes), prices(vm.PricePerHour))),
	}
	var steps []string
	for _, step := range vm.Timeline {
		steps = append(steps, fmt.Sprintf("%s %.1fs", step.Name, step.After.Seconds()))
	}
	if len(steps) > 0 {
		lines = append(lines, Text("  launch: "+strings.Join(steps, " → ")))
	}
	lines = append(lines, Styled("  "+plural(len(vm.Pods), "pod"), Bold))
	for _, pod := range vm.Pods {
		l := append(Text("    "), dot(pod)).And(" "+Pad(pod.Namespace+"/"+pod.Name, 50)).
			In(Dim, fmt.Sprintf("%5dm CPU  %8s  ", pod.MilliCPUs, mib(pod.MemoryBytes)))
		lines = append(lines, l.In(Yellow, pod.Reason))
	}
	return lines
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// All returns the whole Map, for output without a terminal.
func All(m fleet.Map) []Line {
	lines := append(Header(m), Text(""))
	for _, row := range Tree(m) {
		lines = append(lines, row.Line)
		if row.Host == nil {
			continue
		}
		for _, cell := range row.Host.Cells {
			l := append(Text("    "+Pad(fmt.Sprintf("NUMA cell %d", cell.ID), 18)), gauge("CPUs", cell.CPUs, 1, "")...)
			lines = append(lines, append(l, gauge("memory", cell.Memory, 1<<30, " GiB")...))
		}
		if row.Host.Unusable != "" {
			lines = append(lines, Text("    accepts no new VMs: "+row.Host.Unusable))
		}
	}
	m.Events = m.Events[:min(len(m.Events), plainEvents)]
	return slices.Concat(lines, section("NodePools", nodePools(m)), Status(m))
}

// section returns lines below a title; nothing without lines.
func section(title string, lines []Line) []Line {
	if len(lines) == 0 {
		return nil
	}
	return slices.Concat([]Line{Text(""), Styled(title, Bold)}, lines)
}

func gib(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// Status returns pending pods, what Karpenter is doing, and events.
func Status(m fleet.Map) []Line {
	return slices.Concat(section("Pending pods", pending(m)), section("Activity", activity(m)), section("Events (UTC)", events(m)))
}
