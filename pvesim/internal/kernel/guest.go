// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// Guest is a VM or container.
type Guest struct {
	VMID   int
	Type   string // "qemu" or "lxc"
	Host   string
	Config *qm.Config

	Instance  *Instance
	Paused    bool
	Rebooting bool      // the next exit of the guest is a reboot
	StartedAt time.Time // zero if the guest does not run
	PID       int
	PCI       []string // addresses of the devices reserved for it
}

// IsRunning reports whether the guest runs.
func (g *Guest) IsRunning() bool { return !g.StartedAt.IsZero() }

// ID returns the ID of the guest in /cluster/resources.
func (g *Guest) ID() string { return g.Type + "/" + strconv.Itoa(g.VMID) }

// Name returns the name of the guest, or the default that Proxmox shows.
func (g *Guest) Name() string {
	if g.Type == "lxc" {
		return cmp.Or(g.Config.Options["hostname"], "CT"+strconv.Itoa(g.VMID))
	}
	return cmp.Or(g.Config.Options["name"], fmt.Sprintf("VM %d", g.VMID))
}

// BootDiskSize returns the size of the disk that a VM boots from.
func (g *Guest) BootDiskSize() int64 {
	for _, key := range append(qm.BootOrder(g.Config.Options["boot"]), qm.DriveKeys(g.Config.Options)...) {
		if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && !d.IsCDROM() {
			size, _ := qm.ParseSize(d.Opts["size"])
			return size
		}
	}
	return 0
}

// Memory returns the configured memory in bytes.
func (g *Guest) Memory() int64 { return g.Config.Int("memory", 512) << 20 }

// Status returns "running" or "stopped".
func (g *Guest) Status() string {
	if g.IsRunning() {
		return "running"
	}
	return "stopped"
}

// QMPStatus returns "running", "stopped" or "paused".
func (g *Guest) QMPStatus() string {
	if g.IsRunning() && g.Paused {
		return "paused"
	}
	return g.Status()
}

// Uptime returns the seconds since the start.
func (g *Guest) Uptime() int64 {
	if !g.IsRunning() {
		return 0
	}
	return int64(time.Since(g.StartedAt).Seconds())
}

// Load returns plausible usage: a running guest uses a third of its memory and little CPU.
func (g *Guest) Load() (cpu float64, mem int64) {
	if !g.IsRunning() {
		return 0, 0
	}
	return 0.02, g.Memory() / 3
}

// FindVM returns a VM on a host, or nil if the VM does not exist there.
func (k *Kernel) FindVM(host string, vmid int) *Guest {
	g := k.Guests[vmid]
	if g == nil || g.Host != host || g.Type != "qemu" {
		return nil
	}
	return g
}

// SortedGuests returns all guests by VMID.
func (k *Kernel) SortedGuests() []*Guest {
	return slices.SortedFunc(maps.Values(k.Guests), func(a, b *Guest) int { return a.VMID - b.VMID })
}

// GuestCPUs returns the number of vCPUs, limited to the CPUs of the host.
func (k *Kernel) GuestCPUs(g *Guest) int {
	n := int(g.Config.Int("sockets", 1) * g.Config.Int("cores", 1))
	if v := int(g.Config.Int("vcpus", 0)); v > 0 && v < n {
		n = v
	}
	if h := k.Host(g.Host); h != nil {
		n = min(n, h.CPUs())
	}
	return n
}

// NewPID returns a process ID for a QEMU process. The caller holds the mutex.
func (k *Kernel) NewPID() int {
	k.nextPID += 13
	return k.nextPID
}

// MissingConfigError returns the error for a VM that is not on the host.
func MissingConfigError(host string, vmid int) error {
	return api.Failf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", host, vmid)
}

// Health of a guest. Each instance starts as Well.
const (
	Well = "well"
	Sick = "sick"
	Hung = "hung"
)

// Instance is a run of a VM, from power-on to power-off or reboot.
type Instance struct {
	VMID   int
	Host   string
	Name   string
	BootID string
	// Arch is the architecture of the VM's CPUs; empty for x86_64.
	Arch    string
	Options map[string]string
	Disk    *GuestDisk
	// Firmware are the files of the fw_cfg interface by name.
	Firmware map[string][]byte
	// Shares are the directories of virtiofs shares by tag.
	Shares map[string]string
	// Media returns the current content of the CD drives, which can change while the VM runs.
	Media func() []Medium
	// Current returns the current options, which can change while the VM runs, and whether the VM is paused.
	Current func() (options map[string]string, paused bool)
	// Drives returns the disks, with the files of their content.
	Drives func() []DiskFile
	// Lease returns the address that the DHCP server of a virtual network assigns to a MAC address. The result is not
	// valid if there is no such server.
	Lease func(vnet, mac string) netip.Prefix

	cancel   context.CancelFunc
	shutdown chan struct{}
	once     sync.Once
	done     chan struct{}
	mu       sync.Mutex
	agent    *Agent
	acpi     bool
	health   string
	changed  chan struct{} // closed when health changes
	updated  chan struct{} // closed when the options or the pause state change
}

// DiskFile is a disk of a VM and the file of its content.
type DiskFile struct {
	Slot, Volume string
	Size         int64
	Path         string // written by the guest; empty if the simulator has no directory
	Base         string // the content before the first boot; empty for an empty disk
}

// Agent is the information that the guest agent reports.
type Agent struct {
	Hostname   string
	OS         map[string]string
	Interfaces []map[string]any
	// ReadFile returns the content of a file; nil if the guest has none.
	ReadFile func(ctx context.Context, name string) ([]byte, error)
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
		updated: make(chan struct{}),
	}
}

// Cancel cuts the power.
func (in *Instance) Cancel() { in.cancel() }

// Done returns a channel that is closed when the guest has ended.
func (in *Instance) Done() <-chan struct{} { return in.done }

// Finish marks the guest as ended.
func (in *Instance) Finish() { close(in.done) }

// ShutdownRequested returns a channel that is closed when the guest is requested to shut down. A guest that calls it
// handles ACPI events from then on.
func (in *Instance) ShutdownRequested() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.acpi = true
	return in.shutdown
}

// HandlesACPI reports whether the guest reacts to ACPI events.
func (in *Instance) HandlesACPI() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.acpi && in.health != Hung
}

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

// Updated returns a channel that is closed when the options or the pause state of the VM change.
func (in *Instance) Updated() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.updated
}

// NotifyUpdated closes the channel of Updated.
func (in *Instance) NotifyUpdated() {
	if in == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	close(in.updated)
	in.updated = make(chan struct{})
}

// RequestShutdown requests the guest to shut down, as the ACPI power button or the guest agent does.
func (in *Instance) RequestShutdown() { in.once.Do(func() { close(in.shutdown) }) }

// GuestDisk is the content of a disk: named files for simulated guests, and a chain of image files for guests that run
// an operating system.
type GuestDisk struct {
	mu    sync.Mutex
	files map[string][]byte

	// The mutex of the kernel protects the layers.
	base, top *layer // what the disk was created from, and what its guest writes to
	inUse     bool
}

// Read returns a file and whether it exists.
func (d *GuestDisk) Read(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, ok := d.files[name]
	return slices.Clone(data), ok
}

// Write stores a file.
func (d *GuestDisk) Write(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		d.files = map[string][]byte{}
	}
	d.files[name] = slices.Clone(data)
}

// Names returns the names of all files in order.
func (d *GuestDisk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files))
}

// Clone returns a copy of the disk. The caller holds the mutex of the kernel.
func (d *GuestDisk) Clone() *GuestDisk {
	out := &GuestDisk{files: map[string][]byte{}, base: d.shareLayers()}
	for _, n := range d.Names() {
		out.files[n], _ = d.Read(n)
	}
	return out
}
