// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"net/netip"
	"sync"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// Health of a guest. Each instance starts as Well.
const (
	Well = "well"
	Sick = "sick"
	Hung = "hung"
)

// Instance is a run of a VM, from power-on to power-off or reboot.
type Instance struct {
	VMID    int
	Host    string
	Name    string
	BootID  string
	Options map[string]string
	Disk    *GuestDisk
	// Firmware are the files of the fw_cfg interface by name.
	Firmware map[string][]byte
	// Media returns the current content of the CD drives, which can change while the VM runs.
	Media func() []Medium
	// Lease returns the address that the DHCP server of a virtual network assigns to a MAC address. The result is not
	// valid if there is no such server.
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

// Agent is the information that the guest agent reports.
type Agent struct {
	Hostname   string
	OS         map[string]string
	Interfaces []map[string]any
}

// Medium is the content of a CD drive.
type Medium struct {
	Slot, Volume string
	Data         []byte
	// CloudInit are the files of a medium that Proxmox generates from the options of the VM.
	CloudInit map[string]string
}

// NewInstance returns an instance. Cancel calls cancel, which must end the guest. The caller sets the exported fields.
func NewInstance(cancel context.CancelFunc) *Instance {
	return &Instance{
		cancel: cancel, shutdown: make(chan struct{}), done: make(chan struct{}), health: Well, changed: make(chan struct{}),
	}
}

// Cancel cuts the power.
func (in *Instance) Cancel() { in.cancel() }

// Done returns a channel that is closed when the guest has ended.
func (in *Instance) Done() <-chan struct{} { return in.done }

// Finish marks the guest as ended.
func (in *Instance) Finish() { close(in.done) }

// ShutdownRequested returns a channel that is closed when the guest is requested to shut down.
func (in *Instance) ShutdownRequested() <-chan struct{} { return in.shutdown }

// SetAgent starts the guest agent, or stops it if a is nil. It has no effect on a guest that hangs.
func (in *Instance) SetAgent(a *Agent) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.health != Hung {
		in.agent = a
	}
}

// Agent returns the running guest agent, or nil.
func (in *Instance) Agent() *Agent {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.agent
}

// Health returns the health of the guest, and a channel that is closed when it changes.
func (in *Instance) Health() (string, <-chan struct{}) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.health, in.changed
}

// SetHealth sets the health of the guest. A guest that hangs loses its agent and stays hung until it loses power.
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

// RequestShutdown requests the guest to shut down, as the ACPI power button or the guest agent does.
func (in *Instance) RequestShutdown() { in.once.Do(func() { close(in.shutdown) }) }
