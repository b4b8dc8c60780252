// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"regexp"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// MaxNUMACells is how many numaN options a VM can have.
const MaxNUMACells = 8

// PolicyBind is the numaN policy that takes memory from the named cells alone.
const PolicyBind = "bind"

// NUMACell is a numaN option: a cell that the guest sees, and the cells of the
// Host that its memory comes from.
type NUMACell struct {
	// CPUs are vCPU numbers of the guest.
	CPUs cpuset.CPUSet
	// HostCells is empty where the memory may come from anywhere.
	HostCells cpuset.CPUSet
	MemoryMiB int
	Policy    string // PolicyBind, preferred or interleave
}

// Encode writes the option's value.
func (n NUMACell) Encode() string {
	p := Properties{{Key: "cpus", Value: semicolons(n.CPUs)}}
	if !n.HostCells.IsEmpty() {
		p = p.With("hostnodes", semicolons(n.HostCells))
	}
	p = p.With("memory", strconv.Itoa(n.MemoryMiB))
	if n.Policy != "" {
		p = p.With("policy", n.Policy)
	}
	return p.Encode()
}

// semicolons writes a list inside a property string, where a comma ends a value.
func semicolons(set cpuset.CPUSet) string { return strings.ReplaceAll(set.String(), ",", ";") }

// ParseNUMACell reads a numaN option. What cannot be read is left empty.
func ParseNUMACell(value string) NUMACell {
	p := ParseProperties(value)
	list := func(key string) cpuset.CPUSet {
		set, err := cpuset.Parse(strings.ReplaceAll(p.Value(key), ";", ","))
		if err != nil {
			return cpuset.New()
		}
		return set
	}
	return NUMACell{CPUs: list("cpus"), HostCells: list("hostnodes"), MemoryMiB: number(p.Value("memory")), Policy: p.Value("policy")}
}

var numaSlot = regexp.MustCompile(`^numa([0-7])$`)

// NUMASlots are the names of the numaN options that are set.
func (c VMConfig) NUMASlots() []string { return c.slots(numaSlot) }

// NUMACells are the cells that the guest sees; none where numa is off, since
// Proxmox ignores numaN then.
func (c VMConfig) NUMACells() []NUMACell {
	if !isTrue(c.Options["numa"]) {
		return nil
	}
	slots := c.NUMASlots()
	cells := make([]NUMACell, 0, len(slots))
	for _, slot := range slots {
		cells = append(cells, ParseNUMACell(c.Options[slot]))
	}
	return cells
}

// Affinity are the Host's CPUs that the VM may run on; empty where it may run on all.
func (c VMConfig) Affinity() cpuset.CPUSet {
	set, err := cpuset.Parse(c.Options["affinity"])
	if err != nil {
		return cpuset.New()
	}
	return set
}

// Hugepages is the option of that name: "2", "1024" (MiB) or "any"; empty where
// the VM uses none.
func (c VMConfig) Hugepages() string { return c.Options["hugepages"] }

// Hookscript is the volume of the script that the Host runs around the VM's life.
func (c VMConfig) Hookscript() string { return c.Options["hookscript"] }
