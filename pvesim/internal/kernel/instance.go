// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"net/netip"
	"sync"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// Instance is one power-on of a VM: from start to power-off, across no reboot.
type Instance struct {
	VMID    int
	Host    string
	Name    string
	BootID  string
	Options map[string]string
	Disk    *GuestDisk
	// Firmware are the files of the guest's firmware interface, by name.
	Firmware map[string][]byte
	// Media reads the VM's CD drives as they are now; they can change while it runs.
	Media func() []Medium
	// Lease is what the DHCP server of a virtual network tells a network card; not valid where there is no such server.
	Lease func(vnet, mac string) netip.Prefix

	cancel   context.CancelFunc
	shutdown chan struct{}
	once     sync.Once
	done     chan struct{}
	mu       sync.Mutex
	agent    *Agent
	health   string
	changed  chan struct{} // closed when health changes
}

// NewInstance returns an instance whose guest Cancel ends. The caller fills the exported fields.
func NewInstance(cancel context.CancelFunc) *Instance {
	return &Instance{
		cancel: cancel, shutdown: make(chan struct{}), done: make(chan struct{}), health: Well, changed: make(chan struct{}),
	}
}

// Cancel cuts the power of the guest.
func (in *Instance) Cancel() { in.cancel() }

// Done returns a channel that is closed when the guest has ended.
func (in *Instance) Done() <-chan struct{} { return in.done }

// Finish marks the guest as ended.
func (in *Instance) Finish() { close(in.done) }

// Agent is what a guest's agent reports while it runs.
type Agent struct {
	Hostname   string
	OS         map[string]string
	Interfaces []map[string]any
}

// ShutdownRequested is closed when the guest is asked to shut down.
func (in *Instance) ShutdownRequested() <-chan struct{} { return in.shutdown }

// SetAgent starts or, with nil, stops the guest's agent.
func (in *Instance) SetAgent(a *Agent) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.health != Hung {
		in.agent = a
	}
}

func (in *Instance) Agent() *Agent {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.agent
}

// The states of health that a guest can be put into. Each boot begins well.
const (
	Well = "well"
	Sick = "sick"
	Hung = "hung"
)

// Health of the guest, and a channel that is closed when it changes.
func (in *Instance) Health() (string, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.health, in.changed
}

// SetHealth makes the guest ill or well. One that hangs stays so until it has lost its power: its agent is silent, too.
func (in *Instance) SetHealth(health string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.health == Hung && health != Hung {
		return api.Failf("the guest of VM %d hangs: only a reset or a loss of power ends that", in.VMID)
	}
	if health == Hung {
		in.agent = nil
	}
	in.health = health
	close(in.changed)
	in.changed = make(chan struct{})
	return nil
}

// RequestShutdown is the ACPI button, or the agent's command.
func (in *Instance) RequestShutdown() { in.once.Do(func() { close(in.shutdown) }) }

// Medium is what lies in a CD drive.
type Medium struct {
	Slot, Volume string
	Data         []byte
	// CloudInit is set when Proxmox generated the medium from the VM's options.
	CloudInit map[string]string
}
