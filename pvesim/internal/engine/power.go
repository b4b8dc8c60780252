// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
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

func (in *Instance) agentState() *Agent {
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

// setHealth makes the guest ill or well. One that hangs stays so until it has lost its power: its agent is silent, too.
func (in *Instance) setHealth(health string) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.health == Hung && health != Hung {
		return failf("the guest of VM %d hangs: only a reset or a loss of power ends that", in.VMID)
	}
	if health == Hung {
		in.agent = nil
	}
	in.health = health
	close(in.changed)
	in.changed = make(chan struct{})
	return nil
}

// requestShutdown is the ACPI button, or the agent's command.
func (in *Instance) requestShutdown() { in.once.Do(func() { close(in.shutdown) }) }

// powerOn gives a VM power and boots its guest. The caller holds the mutex.
func (e *Engine) powerOn(g *Guest) {
	if g.pci == nil {
		_ = e.reservePCI(g) // it runs from the beginning: whatever it finds
	}
	ctx, cancel := context.WithCancel(e.context())
	in := &Instance{
		VMID: g.VMID, Host: g.Host, Name: g.Config.Options["name"], BootID: uuid.NewString(),
		Options: maps.Clone(g.Config.Options), Disk: e.bootDisk(g), Firmware: e.firmwareFiles(g), cancel: cancel,
		Media: func() []Medium { return e.media(g.VMID) }, Lease: e.lease,
		shutdown: make(chan struct{}), done: make(chan struct{}), health: Well, changed: make(chan struct{}),
	}
	if g.uptime.IsZero() {
		g.uptime = time.Now()
		g.pid = e.newPID()
	}
	before := g.instance
	g.instance, g.paused = in, false
	e.goBackground(func() {
		defer close(in.done)
		defer cancel()
		if before != nil {
			<-before.done // after a reset the old guest is gone before the new one runs
		}
		e.boot(ctx, in)
		if ctx.Err() == nil {
			e.guestPoweredOff(in)
		}
	})
}

// guestPoweredOff notices that a guest ended by itself.
func (e *Engine) guestPoweredOff(in *Instance) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[in.VMID]
	if g == nil || g.instance != in {
		return
	}
	e.afterPowerOff(g)
	if g.rebooting {
		g.rebooting = false
		e.applyAllPending(g)
		e.powerOn(g)
	}
}

// powerOff cuts the power. The caller holds the mutex.
func (e *Engine) powerOff(g *Guest) {
	if g.instance != nil {
		g.instance.cancel()
	}
	e.afterPowerOff(g)
}

func (e *Engine) afterPowerOff(g *Guest) {
	g.instance, g.paused, g.uptime, g.pid, g.pci = nil, false, time.Time{}, 0, nil
}

// bootDisk is the content of the disk that the VM boots from.
func (e *Engine) bootDisk(g *Guest) *GuestDisk {
	for _, key := range append(qm.BootOrder(g.Config.Options["boot"]), qm.DriveKeys(g.Config.Options)...) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || d.IsCDROM() || !d.HasVolume() {
			continue
		}
		if v := e.volume(g.Host, d.File); v != nil {
			return v.Disk
		}
	}
	return &GuestDisk{}
}

func (g *Guest) running() bool { return !g.uptime.IsZero() }

// Medium is what lies in a CD drive.
type Medium struct {
	Slot, Volume string
	Data         []byte
	// CloudInit is set when Proxmox generated the medium from the VM's options.
	CloudInit map[string]string
}

// media reads a VM's CD drives.
func (e *Engine) media(vmid int) []Medium {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[vmid]
	if g == nil {
		return nil
	}
	var out []Medium
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.IsCDROM() || !d.HasVolume() {
			continue
		}
		m := Medium{Slot: key, Volume: d.File}
		if d.IsCloudInit() {
			m.CloudInit = e.cloudInitFiles(g)
		} else {
			m.Data = e.data(e.volume(g.Host, d.File))
		}
		out = append(out, m)
	}
	return out
}

// HostDown cuts a host's power: its guests and tasks end, its VMs keep their configs.
func (e *Engine) HostDown(name, how string) error {
	e.mu.Lock()
	h := e.host(name)
	if h == nil {
		e.mu.Unlock()
		return failf("there is no host '%s'", name)
	}
	h.Online, h.Unreachable, h.report = false, how, nil
	for _, g := range e.guests {
		if g.Host == name && g.running() {
			e.powerOff(g)
		}
	}
	e.mu.Unlock()
	e.Tasks.KillHost(name)
	return nil
}

// HostUp powers a host on again. VMs with onboot start, all others stay stopped.
func (e *Engine) HostUp(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.host(name)
	if h == nil {
		return failf("there is no host '%s'", name)
	}
	h.Online, h.bootedAt = true, time.Now()
	for _, g := range e.sortedGuests() {
		if g.Host == name && g.Type == "qemu" && !g.running() && g.Config.On("onboot", false) && !g.Config.IsTemplate() && g.Config.Lock() == "" {
			e.powerOn(g)
		}
	}
	return nil
}

// newPID invents the process id of a QEMU. The caller holds the mutex.
func (e *Engine) newPID() int {
	e.nextPID += 13
	return e.nextPID
}

// SetQuorum takes the cluster's quorum away or gives it back.
func (e *Engine) SetQuorum(ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noQuorum = !ok
}

// checkQuorum is the test before everything that writes a new config.
func (e *Engine) checkQuorum() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.noQuorum {
		return failf("cluster not ready - no quorum?")
	}
	return nil
}
