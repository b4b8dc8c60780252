// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// Notes are the part of a VM's notes for users, above the ownership mark. Proxmox renders it
// as Markdown.
type Notes struct {
	Claim, NodePool, NodeClass, InstanceType, CapacityType string
	// Machine of the NodeClass; empty if it has none.
	Machine string
	// Description is the text of the NodeClass.
	Description string

	CPUs      int
	MemoryMiB int
	DiskBytes int64
	// Price without currency; 0 if it is unknown.
	Price float64
}

// NewNotes returns the notes of the VM that an intent describes.
func NewNotes(claim, nodePool, nodeClass string, in Intent) Notes {
	return Notes{
		Claim: claim, NodePool: nodePool, NodeClass: nodeClass, InstanceType: in.InstanceType, CapacityType: in.CapacityType,
		Machine: in.Machine, CPUs: in.Cores, MemoryMiB: in.MemoryMiB, DiskBytes: in.DiskBytes, Price: in.Price,
	}
}

// NewMark returns the ownership mark of the VM that an intent describes.
func NewMark(id Identity, in Intent, hookScripts []string) ownership.Mark {
	mark := id.newMark(id.ClaimName)
	mark.Hooks, mark.Machine, mark.Retained = hookScripts, in.Machine, slices.Sorted(maps.Keys(in.Retained))
	mark.Source = &ownership.Source{Host: in.TemplateHost, VMID: in.TemplateID, Image: in.ImageID, Full: in.FullClone}
	if in.ISOStorage != "" {
		mark.Boot = &ownership.Boot{Storage: in.ISOStorage, Firmware: in.Firmware}
	}
	if b := in.Binding; b != nil {
		mark.CPUs, mark.Pin, mark.Pinning, mark.Hugepages = b.CPUs, b.Pin, string(b.Method), b.Hugepages
		if len(b.Pin) > 0 {
			mark.Host = in.Host
		}
	}
	return mark
}

// Description returns the VM's notes: those for users, and the ownership mark. The first
// line is also that of the upstream provider.
func Description(mark ownership.Mark, n Notes) string {
	lines := []string{
		fmt.Sprintf("Karpenter managed instance, class=%s, capacity-type=%s", n.NodeClass, n.CapacityType),
		"",
		fmt.Sprintf("This VM is managed by Karpenter. Do not change or delete it here. To delete it, run: `kubectl delete nodeclaim %s`", n.Claim),
		"",
		fmt.Sprintf("- Kubernetes cluster: %s (UID of its namespace kube-system)", mark.KubeCluster),
		"- NodePool: " + n.NodePool,
		"- NodeClaim: " + n.Claim,
		fmt.Sprintf("- Size: %s, %d CPUs, %s GiB memory, %s GiB disk", n.InstanceType, n.CPUs, decimal(float64(n.MemoryMiB)/1024), decimal(float64(n.DiskBytes)/(1<<30))),
	}
	if n.Machine != "" {
		lines = append(lines, "- Machine: "+n.Machine)
	}
	if n.Price > 0 {
		lines = append(lines, "- Price: "+decimal(n.Price)+", without currency")
	}
	if n.Description != "" {
		lines = append(lines, "", n.Description)
	}
	return mark.Notes(strings.Join(lines, "\n"))
}

// decimal returns a number with at most four decimal places.
func decimal(value float64) string {
	text := strconv.FormatFloat(value, 'f', 4, 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}
