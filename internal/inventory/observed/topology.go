// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
)

// PublishedTopology is the layout that pve-hook published in the notes of a Host.
type PublishedTopology struct {
	// Topology is nil if the line in the notes is invalid.
	Topology *hosttopology.Topology
	// Problem describes why the line is invalid; empty if it is valid.
	Problem string
}

// Cells returns the published cells; none and the problem if they do not match the number of
// CPUs of the Host.
func (p PublishedTopology) Cells(cpus int) ([]hosttopology.Cell, string) {
	if p.Topology == nil {
		return nil, p.Problem
	}
	found := 0
	for _, cell := range p.Topology.Cells {
		found += cell.CPUs().Size()
	}
	if found != cpus {
		return nil, fmt.Sprintf(`the topology in the notes of the host has %d CPUs, the host has %d: run "pve-hook topology --publish" on the host`, found, cpus)
	}
	return p.Topology.Cells, ""
}
