// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// Row is a line of a view that can be selected. Either Host or VM is set.
type Row struct {
	Line Line
	Host *fleet.Host
	VM   *fleet.VM
}

// Tree returns each Host with its VMs below it, and VMs that have no Host yet.
func Tree(m fleet.Map) []Row {
	var rows []Row
	width := newWidths(m)
	shown := map[string]bool{}
	for i := range m.Hosts {
		host := &m.Hosts[i]
		rows = append(rows, Row{Line: width.hostLine(*host), Host: host})
		first := len(rows)
		for j := range m.VMs {
			if vm := &m.VMs[j]; vm.Region == host.Region && vm.Host == host.Name {
				shown[vm.Key()] = true
				rows = append(rows, Row{Line: append(Text("  ├ "), width.vmLine(*vm)...), VM: vm})
			}
		}
		if last := len(rows) - 1; last >= first {
			rows[last].Line[0].Text = "  └ "
		}
	}
	for i := range m.VMs {
		if vm := &m.VMs[i]; !shown[vm.Key()] {
			rows = append(rows, Row{Line: append(Text("  · "), width.vmLine(*vm)...), VM: vm})
		}
	}
	return rows
}

// widths are the widths of columns whose names must not be cut.
type widths struct{ host, instanceType, nodePool int }

func newWidths(m fleet.Map) widths {
	w := widths{host: 8, instanceType: 12, nodePool: 8}
	for _, host := range m.Hosts {
		w.host = max(w.host, utf8.RuneCountInString(hostName(host.Region, host.Name)))
	}
	for _, vm := range m.VMs {
		w.instanceType = max(w.instanceType, utf8.RuneCountInString(vm.Type))
		w.nodePool = max(w.nodePool, utf8.RuneCountInString(vm.NodePool))
	}
	return w
}

// hostName returns the name of a Host as commands accept it.
func hostName(region, host string) string { return region + "/" + host }

// hostLine returns the state of a Host with bars of its CPUs, memory and storages.
func (w widths) hostLine(host fleet.Host) Line {
	l := Styled(Pad(hostName(host.Region, host.Name), w.host+2), Bold)
	switch {
	case host.OutOfService == "Offline":
		l = l.In(Red, Pad("offline", 12))
	case host.OutOfService != "":
		l = l.In(Yellow, Pad(strings.ToLower(strings.TrimPrefix(host.OutOfService, "In")), 12))
	case host.Sleep != "":
		l = l.In(Dim, Pad(host.SleepText(), 12))
	case host.Unusable != "":
		l = l.In(Yellow, Pad("unusable", 12))
	default:
		l = l.In(Green, Pad("up", 12))
	}
	l = append(l, gauge("CPUs", host.CPUs, 1, "")...)
	l = append(l, gauge("memory", host.Memory, 1<<30, " GiB")...)
	for _, storage := range host.Storages {
		l = append(l, gauge(storage.Name, storageUsage(storage), 1<<30, " GiB")...)
	}
	return l
}

// storageUsage returns the use of a storage: Proxmox does not report whose it is.
func storageUsage(s fleet.Storage) fleet.Usage {
	return fleet.Usage{Total: s.TotalBytes, Guests: s.UsedBytes, Reserved: s.ReservedBytes}
}

// gauge returns a name, a bar and the used and total amount.
func gauge(name string, u fleet.Usage, unit int64, suffix string) Line {
	amount := fmt.Sprintf("%d/%d%s", (u.Used()+unit-1)/unit, u.Total/unit, suffix)
	return append(Styled(name+" ", Dim), Bar(u, 12)...).In(Plain, fmt.Sprintf(" %-13s", amount))
}

// Bar returns a bar: ■ is used by our VMs, □ by other guests, ▒ is reserved, · is free. A use
// above zero has at least one cell.
func Bar(u fleet.Usage, cells int) Line {
	var l Line
	left := cells
	for _, part := range []struct {
		used   int64
		symbol string
		style  Style
	}{{u.VMs, "■", Blue}, {u.Guests, "□", Plain}, {u.Reserved, "▒", Yellow}} {
		if part.used <= 0 || u.Total <= 0 {
			continue
		}
		n := min(left, max(1, int((part.used*int64(cells)+u.Total/2)/u.Total)))
		left -= n
		l = l.In(part.style, strings.Repeat(part.symbol, n))
	}
	return l.In(Dim, strings.Repeat("·", left))
}

// vmLine returns the state of a VM, its price and a symbol for each of its pods.
func (w widths) vmLine(vm fleet.VM) Line {
	id := "-" // not planned yet
	if vm.VMID != 0 {
		id = fmt.Sprint(vm.VMID)
	}
	l := Text("VM ").In(Bold, fmt.Sprintf("%-8s", id)).In(Dim, Pad(vm.Type, w.instanceType+2)).And(Pad(vm.NodePool, w.nodePool+2)).
		In(phaseStyle(vm.Phase), Pad(string(vm.Phase), 11)).In(Dim, Pad(readyAfter(vm), 9))
	l = l.And(Pad(fmt.Sprintf("%.3f/h", vm.PricePerHour), 10))
	for _, pod := range vm.Pods {
		l = append(l, dot(pod))
	}
	if vm.Reason != "" {
		l = l.In(Yellow, " "+vm.Reason)
	}
	return l
}

// readyAfter returns how long the launch took; empty if the Node was never ready.
func readyAfter(vm fleet.VM) string {
	if after, ok := vm.ReadyAfter(); ok {
		return "in " + after.Round(time.Second).String()
	}
	return ""
}

func phaseStyle(p fleet.Phase) Style {
	switch p {
	case fleet.Ready:
		return Green
	case fleet.NotReady, fleet.Stopped, fleet.Orphaned:
		return Red
	case fleet.Deleting:
		return Dim
	case fleet.Waiting, fleet.Planned, fleet.Cloning, fleet.Configured, fleet.Booting, fleet.Joined:
	}
	return Yellow
}

// dot returns the symbol of a pod.
func dot(p fleet.Pod) Span {
	switch {
	case p.Deleting:
		return Span{"×", Dim}
	case p.Ready:
		return Span{"●", Green}
	}
	return Span{"○", Yellow}
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
