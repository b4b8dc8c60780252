// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package webpage

import (
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// barWidth is the width of a bar. The parts of a bar are SVG attributes, because the page's
// content security policy does not allow style attributes.
const barWidth = 160

// segment is a part of a bar.
type segment struct {
	Class    string
	X, Width float64
	Title    string
}

// bar returns the parts of a bar of a resource.
func bar(u fleet.Usage) []segment {
	return segments(float64(u.Total), []segment{
		{Class: "vms", Width: float64(u.VMs)}, {Class: "guests", Width: float64(u.Guests)}, {Class: "reserved", Width: float64(u.Reserved)},
	})
}

// storageBar returns the parts of a storage's bar.
func storageBar(s fleet.Storage) []segment {
	return segments(float64(s.TotalBytes), []segment{{Class: "guests", Width: float64(s.UsedBytes)}, {Class: "reserved", Width: float64(s.ReservedBytes)}})
}

// segments scales parts to the width of a bar. Parts beyond its end are cut.
func segments(total float64, parts []segment) []segment {
	var out []segment
	x := 0.0
	for _, part := range parts {
		if total <= 0 || part.Width <= 0 {
			continue
		}
		part.X, part.Width = x, min(part.Width/total*barWidth, barWidth-x)
		x += part.Width
		out = append(out, part)
	}
	return out
}

// timelineBar returns the steps of a launch, scaled to a minute or to the longest step.
func timelineBar(steps []fleet.Step) []segment {
	var parts []segment
	longest := time.Minute
	before := time.Duration(0)
	for i, step := range steps {
		class := "step0"
		if i%2 == 1 {
			class = "step1"
		}
		parts = append(parts, segment{Class: class, Width: float64(step.After - before), Title: step.Name})
		before = step.After
		longest = max(longest, step.After)
	}
	return segments(float64(longest), parts)
}
