// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
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
	out := make([]*Guest, 0, len(k.Guests))
	for _, g := range k.Guests {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *Guest) int { return a.VMID - b.VMID })
	return out
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
