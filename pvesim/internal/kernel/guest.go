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

// Guest is a VM or container, ours or not.
type Guest struct {
	VMID   int
	Type   string // "qemu" or "lxc"
	Host   string
	Config *qm.Config

	Instance  *Instance
	Paused    bool
	Rebooting bool      // the next power-off of the guest is a reboot
	StartedAt time.Time // when QEMU started; zero while it does not run
	PID       int
	PCI       []string // addresses of the devices that it has, from the beginning of its start on
}

// GuestOn finds a VM on the host that the request names; a VM on another host counts as missing.
func (k *Kernel) GuestOn(host string, vmid int) *Guest {
	g := k.Guests[vmid]
	if g == nil || g.Host != host || g.Type != "qemu" {
		return nil
	}
	return g
}

// SortedGuests lists all guests by VMID.
func (k *Kernel) SortedGuests() []*Guest {
	out := make([]*Guest, 0, len(k.Guests))
	for _, g := range k.Guests {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *Guest) int { return a.VMID - b.VMID })
	return out
}

func (g *Guest) Running() bool { return !g.StartedAt.IsZero() }

// NewPID invents the process id of a QEMU. The caller holds the mutex.
func (k *Kernel) NewPID() int {
	k.nextPID += 13
	return k.nextPID
}

// MissingConfig is how synchronous calls say that a VM is not on the host.
func MissingConfig(host string, vmid int) error {
	return api.Failf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", host, vmid)
}

func (g *Guest) ID() string { return g.Type + "/" + strconv.Itoa(g.VMID) }

func (g *Guest) Name() string {
	if g.Type == "lxc" {
		return cmp.Or(g.Config.Options["hostname"], "CT"+strconv.Itoa(g.VMID))
	}
	return cmp.Or(g.Config.Options["name"], fmt.Sprintf("VM %d", g.VMID))
}

// GuestCPUs is the number of vCPUs, never more than the host has.
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

// BootDiskSize is the size of the disk that a VM boots from.
func (g *Guest) BootDiskSize() int64 {
	for _, key := range append(qm.BootOrder(g.Config.Options["boot"]), qm.DriveKeys(g.Config.Options)...) {
		if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && !d.IsCDROM() {
			size, _ := qm.ParseSize(d.Opts["size"])
			return size
		}
	}
	return 0
}

func (g *Guest) Memory() int64 { return g.Config.Int("memory", 512) << 20 }

// Status is "running" or "stopped"; qmpStatus knows more.
func (g *Guest) Status() string {
	if g.Running() {
		return "running"
	}
	return "stopped"
}

func (g *Guest) QMPStatus() string {
	if g.Running() && g.Paused {
		return "paused"
	}
	return g.Status()
}

func (g *Guest) Uptime() int64 {
	if !g.Running() {
		return 0
	}
	return int64(time.Since(g.StartedAt).Seconds())
}

// Load is a plausible use: a running guest uses a third of its memory and a little CPU.
func (g *Guest) Load() (cpu float64, mem int64) {
	if !g.Running() {
		return 0, 0
	}
	return 0.02, g.Memory() / 3
}
