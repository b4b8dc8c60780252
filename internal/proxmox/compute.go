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

// PolicyBind is the numaN policy that restricts memory to the listed cells.
const PolicyBind = "bind"

// NUMACell is a numaN option: a NUMA cell of the guest and the cells of the Host
// that provide its memory.
type NUMACell struct {
	// CPUs are vCPU numbers of the guest.
	CPUs cpuset.CPUSet
	// HostCells is empty if any cell of the Host may provide the memory.
	HostCells cpuset.CPUSet
	MemoryMiB int
	Policy    string // PolicyBind, preferred or interleave
}

// Encode returns the value of the numaN option.
func (n NUMACell) Encode() string {
	p := Properties{{Key: "cpus", Value: formatList(n.CPUs)}}
	if !n.HostCells.IsEmpty() {
		p = p.With("hostnodes", formatList(n.HostCells))
	}
	p = p.With("memory", strconv.Itoa(n.MemoryMiB))
	if n.Policy != "" {
		p = p.With("policy", n.Policy)
	}
	return p.Encode()
}

// formatList separates ranges by semicolons: in a property string a comma ends a value.
func formatList(set cpuset.CPUSet) string { return strings.ReplaceAll(set.String(), ",", ";") }

// ParseNUMACell parses the value of a numaN option. Lists that do not parse are
// left empty.
func ParseNUMACell(value string) NUMACell {
	p := ParseProperties(value)
	list := func(key string) cpuset.CPUSet {
		set, _ := ParseCPUs(strings.ReplaceAll(p.Value(key), ";", ","))
		return set
	}
	return NUMACell{CPUs: list("cpus"), HostCells: list("hostnodes"), MemoryMiB: parseNumber(p.Value("memory")), Policy: p.Value("policy")}
}

// Compute are the CPU and memory options of a VM.
type Compute struct{ options map[string]string }

// Cores returns the cores per socket. Proxmox's default is one.
func (c Compute) Cores() int { return max(1, parseNumber(c.options["cores"])) }

// Sockets returns the number of sockets. Proxmox's default is one.
func (c Compute) Sockets() int { return max(1, parseNumber(c.options["sockets"])) }

// MemoryMiB returns the maximum memory. Proxmox's default is 512. Since 8.1 memory
// is a property string ("current=2048").
func (c Compute) MemoryMiB() int {
	if mib := parseNumber(ParseProperties(c.options["memory"]).defaultValue("current")); mib > 0 {
		return mib
	}
	return 512
}

// Affinity returns the CPUs of the Host that the VM may run on. It is empty if the
// VM may run on all of them, and if the list does not parse.
func (c Compute) Affinity() cpuset.CPUSet {
	set, _ := ParseCPUs(c.options["affinity"])
	return set
}

// Hugepages returns the hugepages option: "2", "1024" (MiB) or "any". It is empty
// if the VM uses none.
func (c Compute) Hugepages() string { return c.options["hugepages"] }

var numaSlot = regexp.MustCompile(`^numa([0-7])$`)

// NUMASlots returns the names of the numaN options that are set, also if numa is off.
func (c Compute) NUMASlots() []string { return slots(c.options, numaSlot) }

// NUMACells returns the NUMA cells that the guest sees. There are none if numa is
// off, since Proxmox then ignores numaN.
func (c Compute) NUMACells() []NUMACell {
	if !isTrue(c.options["numa"]) {
		return nil
	}
	slots := c.NUMASlots()
	cells := make([]NUMACell, 0, len(slots))
	for _, slot := range slots {
		cells = append(cells, ParseNUMACell(c.options[slot]))
	}
	return cells
}
