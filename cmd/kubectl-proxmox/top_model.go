// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
)

// topModel is the state of the live view. Update and View are pure functions of it.
type topModel struct {
	read    func() (fleet.Map, error)
	options topOptions

	fleet   fleet.Map // as read, without filter and order
	err     error
	reading bool
	loaded  bool

	width, height int
	// opened are the keys of the opened Host and VM: none shows all Hosts.
	opened []string
	// selected is the key of the selected row.
	selected string
}

// fleetMsg is the result of a read, and tickMsg starts the next one.
type (
	fleetMsg struct {
		fleet fleet.Map
		err   error
	}
	tickMsg struct{}
)

func newTopModel(read func() (fleet.Map, error), options topOptions) topModel {
	return topModel{read: read, options: options, reading: true, width: 80, height: 24}
}

// Init starts the first read, and the timer of the next ones.
func (m topModel) Init() tea.Cmd { return tea.Batch(m.load, m.tick()) }

// tick sends a tickMsg after the interval. Only a tickMsg starts the next timer: those of
// reads that a key starts would add up.
func (m topModel) tick() tea.Cmd {
	return tea.Tick(m.options.interval, func(time.Time) tea.Msg { return tickMsg{} })
}

func (m topModel) load() tea.Msg {
	found, err := m.read()
	return fleetMsg{found, err}
}

// Update handles a key, a new size, or a result.
func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case fleetMsg:
		m.reading, m.err = false, msg.err
		if msg.err == nil {
			m.fleet, m.loaded = msg.fleet, true
		}
	case tickMsg:
		reloaded, read := m.reload()
		return reloaded, tea.Batch(read, m.tick())
	case tea.KeyPressMsg:
		return m.key(msg.String())
	}
	return m, nil
}

// reload starts a read unless one is in progress.
func (m topModel) reload() (tea.Model, tea.Cmd) {
	if m.reading {
		return m, nil
	}
	m.reading = true
	return m, m.load
}

func (m topModel) key(key string) (tea.Model, tea.Cmd) {
	rows := m.rows()
	at := slices.IndexFunc(rows, func(r terminal.Row) bool { return rowKey(r) == m.selected })
	switch key {
	case "q", "ctrl+c":
		return m, tea.Quit
	case "r":
		return m.reload()
	case "s":
		orders := fleet.Orders()
		next := slices.Index(orders, fleet.Order(m.options.order)) + 1
		m.options.order = string(orders[next%len(orders)])
	case "f":
		m.options.nodePool = m.nextNodePool()
	case "esc", "backspace", "left", "h":
		if n := len(m.opened); n > 0 {
			m.selected, m.opened = m.opened[n-1], m.opened[:n-1]
		}
	case "enter", "right", "l":
		if len(rows) > 0 {
			m.opened = append(slices.Clone(m.opened), rowKey(rows[max(at, 0)]))
			m.selected = ""
		}
	case "down", "j", "up", "k", "pgdown", "pgup", "home", "end":
		steps := map[string]int{"down": 1, "j": 1, "up": -1, "k": -1, "pgdown": m.height / 2, "pgup": -m.height / 2, "home": -len(rows), "end": len(rows)}
		if len(rows) > 0 {
			m.selected = rowKey(rows[min(max(max(at, 0)+steps[key], 0), len(rows)-1)])
		}
	}
	return m, nil
}

// nextNodePool returns the NodePool after the shown one; empty for all.
func (m topModel) nextNodePool() string {
	names := []string{""}
	for _, pool := range m.fleet.NodePools {
		names = append(names, pool.Name)
	}
	return names[(slices.Index(names, m.options.nodePool)+1)%len(names)]
}

// rowKey identifies a row, also after it has moved.
func rowKey(row terminal.Row) string {
	if row.VM != nil {
		return "vm " + row.VM.Key()
	}
	return "host " + row.Host.Region + "/" + row.Host.Name
}

// rows returns the rows that can be selected: all Hosts with their VMs, the VMs of the opened
// Host, or none below an opened VM.
func (m topModel) rows() []terminal.Row {
	rows := terminal.Tree(m.options.arrange(m.fleet))
	if len(m.opened) == 0 {
		return rows
	}
	opened := m.openedRow(rows)
	if opened.Host == nil {
		return nil
	}
	return slices.DeleteFunc(rows, func(r terminal.Row) bool {
		return r.VM == nil || r.VM.Region != opened.Host.Region || r.VM.Host != opened.Host.Name
	})
}

// openedRow returns the row that was opened last; an empty one if it no longer exists.
func (m topModel) openedRow(rows []terminal.Row) terminal.Row {
	if i := slices.IndexFunc(rows, func(r terminal.Row) bool { return rowKey(r) == m.opened[len(m.opened)-1] }); i >= 0 {
		return rows[i]
	}
	return terminal.Row{}
}

// View draws the state.
func (m topModel) View() tea.View {
	var out []string
	for _, line := range m.lines() {
		out = append(out, line.Render(m.width, true))
	}
	view := tea.NewView(strings.Join(out, "\n"))
	view.AltScreen = true
	view.WindowTitle = "kubectl proxmox top"
	return view
}

// lines returns at most as many lines as the window has. The list gets what the other
// parts leave.
func (m topModel) lines() []terminal.Line {
	head := terminal.Fit(append(m.head(), terminal.Text("")), max(m.height-2, 1))
	list := m.list()
	bottom := terminal.Fit(m.bottom(), max(m.height/3, m.height-len(head)-len(list)-1))
	body := window(list, m.selectedIndex(), max(m.height-len(head)-len(bottom)-1, 1))
	lines := slices.Concat(head, body, bottom)
	lines = lines[:max(min(len(lines), m.height-1), 0)]
	for len(lines) < m.height-1 {
		lines = append(lines, terminal.Text(""))
	}
	return append(lines, m.foot())
}

// head returns the totals, or the opened object.
func (m topModel) head() []terminal.Line {
	arranged := m.options.arrange(m.fleet)
	if len(m.opened) == 0 {
		return terminal.Header(arranged)
	}
	switch row := m.openedRow(terminal.Tree(arranged)); {
	case row.VM != nil:
		return terminal.VMDetail(*row.VM, m.fleet.Taken)
	case row.Host != nil:
		return terminal.HostDetail(*row.Host)
	}
	return []terminal.Line{terminal.Styled(m.opened[len(m.opened)-1]+" no longer exists", terminal.Yellow)}
}

// list returns the rows with the selected one marked.
func (m topModel) list() []terminal.Line {
	var lines []terminal.Line
	selected := m.selectedIndex()
	for i, row := range m.rows() {
		if i == selected {
			row.Line = row.Line.Restyled(terminal.Reverse, m.width)
		}
		lines = append(lines, row.Line)
	}
	return lines
}

func (m topModel) selectedIndex() int {
	return max(slices.IndexFunc(m.rows(), func(r terminal.Row) bool { return rowKey(r) == m.selected }), 0)
}

// bottom returns pending pods, what Karpenter is doing, and events, below all Hosts.
func (m topModel) bottom() []terminal.Line {
	if len(m.opened) > 0 {
		return nil
	}
	return terminal.Status(m.fleet)
}

// foot returns the keys, the filter and the last error.
func (m topModel) foot() terminal.Line {
	if m.err != nil {
		return terminal.Styled("reading failed, retrying: "+m.err.Error(), terminal.Red)
	}
	if !m.loaded {
		return terminal.Styled("reading …", terminal.Dim)
	}
	pool := m.options.nodePool
	if pool == "" {
		pool = "all"
	}
	return terminal.Styled(fmt.Sprintf("enter open  esc back  s sort: %s  f nodepool: %s  r read  q quit   %s",
		m.options.order, pool, m.fleet.Taken.UTC().Format("15:04:05 MST")), terminal.Dim)
}

// window returns the part of a list around the selected line.
func window(list []terminal.Line, selected, rows int) []terminal.Line {
	if len(list) <= rows {
		return list
	}
	first := min(max(selected-rows/2, 0), len(list)-rows)
	return list[first : first+rows]
}
