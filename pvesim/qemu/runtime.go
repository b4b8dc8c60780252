// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Options configure a Runtime. The zero value is usable.
type Options struct {
	// Dir is where the runtime creates its temporary directory; the system's directory for temporary files if empty.
	Dir string
	// ConsoleDir is an existing directory for the logs of the serial consoles, which remain there. If it is empty, they
	// are in the temporary directory.
	ConsoleDir string
	// Acceleration is "kvm" or "tcg". If it is empty, KVM is used if ProbeKernel boots with it.
	Acceleration string
	// ProbeKernel is a Linux kernel that is booted once to find out whether KVM works; Kernel if empty.
	ProbeKernel string
	// Kernel, Initrd and KernelArgs boot all VMs directly, without a boot loader. If Kernel is empty, VMs boot from their
	// drives.
	Kernel, Initrd, KernelArgs string
	// Log receives messages about started and failed guests; nil discards them.
	Log func(message string)
}

// Network is the virtual network of the hosts.
type Network interface {
	// Socket returns the path of the unix socket to which QEMU connects a NIC of a bridge and VLAN, 0 for none. Each
	// frame is preceded by its length in four bytes.
	Socket(bridge string, vlan int) (string, error)
}

// Runtime runs the guests of one simulator as QEMU processes. They end with this process.
type Runtime struct {
	options Options
	qemu    string // path of qemu-system-x86_64
	image   string // path of qemu-img
	dir     *directory
	kvm     func() bool
	network Network // nil for user-mode networks

	mu     sync.Mutex
	guests map[int]*guest          // running, by VMID
	ended  map[int]<-chan struct{} // closed when the last guest of a VMID has ended
}

var _ pvesim.GuestRuntime = (*Runtime)(nil)

// packages are the Debian packages of the programs.
var packages = map[string]string{"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils"}

// maxSocketPath is the maximum length of the path of a unix socket.
const maxSocketPath = 107

// NewRuntime returns a runtime for pvesim's Options.Guests. It fails if QEMU is not installed. Pass Dir as the
// simulator's Options.Dir, and call Close after the simulator is closed.
func NewRuntime(options Options) (*Runtime, error) {
	r := &Runtime{options: options, guests: map[int]*guest{}, ended: map[int]<-chan struct{}{}}
	for program, path := range map[string]*string{"qemu-system-x86_64": &r.qemu, "qemu-img": &r.image} {
		found, err := exec.LookPath(program)
		if err != nil {
			return nil, fmt.Errorf("%s is not installed; on Debian and Ubuntu, run: apt-get install %s", program, packages[program])
		}
		*path = found
	}
	switch options.Acceleration {
	case "":
		r.kvm = sync.OnceValue(r.probeKVM)
	case "kvm", "tcg":
		r.kvm = func() bool { return options.Acceleration == "kvm" }
	default:
		return nil, fmt.Errorf("acceleration %q is not one of kvm, tcg", options.Acceleration)
	}
	for name, file := range map[string]string{"kernel": options.Kernel, "initrd": options.Initrd, "probe kernel": options.ProbeKernel} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
	}
	dir, err := newDirectory(options.Dir)
	if err != nil {
		return nil, err
	}
	r.dir = dir
	if path := r.ConsoleSocket(999999999); len(path) > maxSocketPath {
		dir.remove()
		return nil, fmt.Errorf("directory %s: the paths of sockets in it, such as %s, are longer than %d characters; choose a shorter one",
			filepath.Dir(dir.path), path, maxSocketPath)
	}
	r.options.ConsoleDir = cmp.Or(options.ConsoleDir, dir.path)
	return r, nil
}

// SetNetwork connects the NICs of all VMs to a network. Call it before the first boot. Without it, each NIC has its own
// user-mode network with DHCP, in which this machine is 10.0.2.2.
func (r *Runtime) SetNetwork(network Network) { r.network = network }

// Close removes the temporary directory with all disks. Call it after the simulator is closed.
func (r *Runtime) Close() { r.dir.remove() }

// Dir returns the temporary directory for the simulator's Options.Dir.
func (r *Runtime) Dir() string { return r.dir.path }

// ConsoleLog returns the file with the output of a VM's serial console over all boots.
func (r *Runtime) ConsoleLog(vmid int) string {
	return filepath.Join(r.options.ConsoleDir, fmt.Sprintf("console-%d.log", vmid))
}

// Console returns the output of a VM's serial console over all boots.
func (r *Runtime) Console(vmid int) string {
	data, err := os.ReadFile(r.ConsoleLog(vmid))
	if err != nil {
		return ""
	}
	return string(data)
}

// ConsoleSocket returns the path of the unix socket of a VM's serial console. It exists while the VM runs.
func (r *Runtime) ConsoleSocket(vmid int) string {
	return filepath.Join(r.dir.path, strconv.Itoa(vmid), "console.sock")
}

func (r *Runtime) logf(format string, args ...any) {
	if r.options.Log != nil {
		r.options.Log(fmt.Sprintf(format, args...))
	}
}

// Boot runs one VM from power on until ctx is done, which ends QEMU, or until the guest has powered off. VMs without
// an operating system, for example those of the default scenario, run no process and power off on request.
func (r *Runtime) Boot(ctx context.Context, m *pvesim.Machine) {
	finish := r.waitForEarlier(m.VMID)
	defer finish()
	g := &guest{runtime: r, machine: m, dir: filepath.Join(r.dir.path, strconv.Itoa(m.VMID))}
	disks := m.Disks()
	if !g.hasContent(disks) {
		pvesim.CooperativeGuests{}.Boot(ctx, m)
		return
	}
	defer g.cleanUp()
	err := g.start(ctx, disks)
	if err == nil {
		r.setGuest(m.VMID, g)
		defer r.setGuest(m.VMID, nil)
		err = g.run(ctx)
	}
	if err != nil && ctx.Err() == nil {
		r.logf("VM %d (%s): %v", m.VMID, m.Name, err)
	}
}

// waitForEarlier waits until the earlier process of a VM has released its disks. The caller calls finish at the end.
func (r *Runtime) waitForEarlier(vmid int) (finish func()) {
	done := make(chan struct{})
	r.mu.Lock()
	earlier := r.ended[vmid]
	r.ended[vmid] = done
	r.mu.Unlock()
	if earlier != nil {
		<-earlier
	}
	return func() { close(done) }
}

func (r *Runtime) setGuest(vmid int, g *guest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g == nil {
		delete(r.guests, vmid)
	} else {
		r.guests[vmid] = g
	}
}

// runningGuest returns the guest of a running VM.
func (r *Runtime) runningGuest(vmid int) (*guest, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.guests[vmid]; g != nil {
		return g, nil
	}
	return nil, errors.New("the VM does not run")
}
