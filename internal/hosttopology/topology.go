// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosttopology reads and writes the layout of a Host's CPUs and memory in the
// notes of the Host. Proxmox's API does not report the layout: pve-hook reads it on the Host
// and publishes it as a line of the notes, which the controller reads.
package hosttopology

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"
	kjson "sigs.k8s.io/json"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Topology is the layout of a Host.
type Topology struct {
	// Cells sorted by ID.
	Cells []Cell
}

// Cell is a NUMA cell with CPUs.
type Cell struct {
	ID        int
	MemoryMiB int64
	// Cores are the CPUs of each core. All are online.
	Cores []cpuset.CPUSet
	// Caches are the CPUs that share a last-level cache, as a partition of the cell's CPUs.
	// Nil if unknown.
	Caches []cpuset.CPUSet
}

// CPUs returns all CPUs of the cell.
func (c Cell) CPUs() cpuset.CPUSet { return cpuset.New().Union(c.Cores...) }

// The line is an HTML comment, which is not shown when Proxmox renders the notes as
// Markdown. Users may add text around it.
const (
	opening = "<!-- karpenter.proxmox.sinextra.dev/topology "
	closing = " -->"
	version = 1
)

// pattern matches also invalid lines, so they are reported and replaced.
var pattern = regexp.MustCompile(`(?m)^[ \t\r]*` + regexp.QuoteMeta(strings.TrimSpace(opening)) + `[^\n]*\n?`)

// document is the content of the line.
type document struct {
	Version int `json:"v"`
	// Host is the name of the Host, to detect notes copied from another one.
	Host  string         `json:"host"`
	Cells []documentCell `json:"cells"`
}

type documentCell struct {
	ID        int      `json:"id"`
	MemoryMiB int64    `json:"memoryMiB"`
	Cores     []string `json:"cores"`
	Caches    []string `json:"caches,omitempty"`
}

// Line returns the line for the notes of a Host.
func (t Topology) Line(host string) string {
	doc := document{Version: version, Host: host, Cells: []documentCell{}}
	for _, cell := range t.Cells {
		doc.Cells = append(doc.Cells, documentCell{ID: cell.ID, MemoryMiB: cell.MemoryMiB, Cores: lists(cell.Cores), Caches: lists(cell.Caches)})
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		// Strings and integers always marshal.
		panic(err)
	}
	return opening + string(raw) + closing
}

func lists(sets []cpuset.CPUSet) []string {
	var out []string
	for _, set := range sets {
		out = append(out, set.String())
	}
	return out
}

// Notes returns a text with the line below it. Earlier lines in the text are removed.
func (t Topology) Notes(text, host string) string {
	text = strings.TrimRight(pattern.ReplaceAllString(text, ""), "\n ")
	if text != "" {
		text += "\n\n"
	}
	return text + t.Line(host) + "\n"
}

// IsPublished reports whether the notes contain exactly this topology of a Host.
func (t Topology) IsPublished(notes, host string) bool {
	found := pattern.FindAllString(notes, -1)
	return len(found) == 1 && strings.TrimSpace(found[0]) == t.Line(host)
}

// HasLine reports whether the notes contain a topology, valid or not.
func HasLine(notes string) bool { return pattern.MatchString(notes) }

// Read returns the topology in the notes of a Host; nil if there is none. It returns an
// error if the notes contain an invalid topology, that of another Host, or more than one.
func Read(notes, host string) (*Topology, error) {
	found := pattern.FindAllString(notes, -1)
	switch {
	case len(found) == 0:
		return nil, nil
	case len(found) > 1:
		return nil, fmt.Errorf("found %d lines with a topology, want one", len(found))
	}
	raw, ok := strings.CutPrefix(strings.TrimSpace(found[0]), opening)
	raw, closed := strings.CutSuffix(raw, closing)
	if !ok || !closed {
		return nil, fmt.Errorf("found %.60q, want a line that ends with %q", strings.TrimSpace(found[0]), closing)
	}
	return parse([]byte(raw), host)
}

func parse(raw []byte, host string) (*Topology, error) {
	var header struct {
		Version int `json:"v"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &header); err != nil {
		return nil, err
	}
	if header.Version != version {
		return nil, fmt.Errorf("found the version %d, want %d: install the pve-hook of the controller's release", header.Version, version)
	}
	var doc document
	unknown, err := kjson.UnmarshalStrict(raw, &doc)
	if err == nil && len(unknown) > 0 {
		err = unknown[0]
	}
	if err != nil {
		return nil, err
	}
	if doc.Host != host {
		return nil, fmt.Errorf("found the topology of host %.63q, want that of %q", doc.Host, host)
	}
	if len(doc.Cells) == 0 {
		return nil, errors.New("found no cells, want at least one")
	}
	t := &Topology{}
	taken := cpuset.New()
	for n, cell := range doc.Cells {
		if n > 0 && cell.ID <= t.Cells[n-1].ID || cell.ID < 0 {
			return nil, fmt.Errorf("found the cell %d at position %d, want IDs from 0 in ascending order", cell.ID, n)
		}
		parsed, err := cell.parse()
		if err != nil {
			return nil, fmt.Errorf("cell %d: %w", cell.ID, err)
		}
		cpus := parsed.CPUs()
		if both := taken.Intersection(cpus); !both.IsEmpty() {
			return nil, fmt.Errorf("cell %d: found CPUs %s also in another cell, want each CPU once", cell.ID, both)
		}
		taken = taken.Union(cpus)
		t.Cells = append(t.Cells, parsed)
	}
	return t, nil
}

// maxMemoryMiB is one pebibyte.
const maxMemoryMiB = 1 << 30

func (c documentCell) parse() (Cell, error) {
	cell := Cell{ID: c.ID, MemoryMiB: c.MemoryMiB}
	if c.MemoryMiB <= 0 || c.MemoryMiB > maxMemoryMiB {
		return cell, fmt.Errorf("found memoryMiB %d, want 1 to %d", c.MemoryMiB, maxMemoryMiB)
	}
	var err error
	if cell.Cores, err = parseSets("cores", c.Cores); err != nil {
		return cell, err
	}
	if len(cell.Cores) == 0 {
		return cell, errors.New("found no cores, want at least one")
	}
	if cell.Caches, err = parseSets("caches", c.Caches); err != nil || cell.Caches == nil {
		return cell, err
	}
	if !cpuset.New().Union(cell.Caches...).Equals(cell.CPUs()) {
		return cell, errors.New("the caches and the cores have different CPUs")
	}
	for _, core := range cell.Cores {
		if !slices.ContainsFunc(cell.Caches, core.IsSubsetOf) {
			return cell, fmt.Errorf("the CPUs %s of a core are in different caches", core)
		}
	}
	return cell, nil
}

// parseSets parses lists of CPUs that must be disjoint and not empty.
func parseSets(field string, lists []string) ([]cpuset.CPUSet, error) {
	var sets []cpuset.CPUSet
	seen := map[int]bool{}
	for _, list := range lists {
		set, err := proxmox.ParseCPUs(list)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", field, err)
		}
		if set.IsEmpty() {
			return nil, fmt.Errorf("%s: found an empty list, want CPUs", field)
		}
		for _, cpu := range set.UnsortedList() {
			if seen[cpu] {
				return nil, fmt.Errorf("%s: found CPU %d twice, want each CPU once", field, cpu)
			}
			seen[cpu] = true
		}
		sets = append(sets, set)
	}
	return sets, nil
}
