// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"context"
	"time"
)

// Script is what a guest does on its own after it has booted.
type Script struct {
	// Files are written to the boot disk, by name.
	Files map[string]string
	// Agent runs from the start; nil for a guest without one.
	Agent *Agent
	// PowerOff makes the guest power itself off after a simulated time. A guest without it runs until it is stopped.
	PowerOff bool
	After    time.Duration
}

// ScriptedGuests run a script each. They simulate guests that install software and power themselves off, or fail to.
type ScriptedGuests struct {
	// Script returns the script for one boot of a VM, or nil for a guest that only reacts to requests, as
	// CooperativeGuests do.
	Script func(m *Machine) *Script
}

// Boot runs the script of the VM.
func (g ScriptedGuests) Boot(ctx context.Context, m *Machine) {
	script := g.Script(m)
	if script == nil {
		CooperativeGuests{}.Boot(ctx, m)
		return
	}
	m.SetAgent(script.Agent)
	if script.PowerOff {
		if m.sleep(ctx, script.After) != nil {
			return // the power was cut
		}
	}
	for name, content := range script.Files {
		m.Disk.Write(name, []byte(content))
	}
	if !script.PowerOff {
		CooperativeGuests{}.Boot(ctx, m)
	}
}
