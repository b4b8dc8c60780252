// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package power starts, stops, reboots and resets VMs. It checks the requirements of a start and simulates the loss of
// power.
package power

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/ha"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/mapping"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pending"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Durations of the parts of a power operation.
const (
	startTime    = 600 * time.Millisecond // systemd scope, QEMU, QMP
	nicTime      = 300 * time.Millisecond // bridge script of each NIC
	agentTimeout = 3 * time.Second
)

// stopTimes are how long a stop takes: Proxmox polls once a second whether QEMU has ended.
var stopTimes = []time.Duration{600 * time.Millisecond, 1650 * time.Millisecond}

// BootFunc runs a guest. It returns when the guest powers itself off or the context ends.
type BootFunc func(ctx context.Context, in *kernel.Instance)

// Controller turns VMs on and off.
type Controller struct {
	k       *kernel.Kernel
	store   *storage.Store
	network *sdn.Network
	ha      *ha.Manager
	devices *devices
	boot    BootFunc
	seed    uint64
	stops   map[int]uint64 // number of stops by VMID
}

// New returns a controller that runs guests with boot. It becomes the power control of the HA manager. The durations of
// stops depend on the seed.
func New(
	k *kernel.Kernel, store *storage.Store, network *sdn.Network, mappings *mapping.Mappings, manager *ha.Manager, boot BootFunc, seed uint64,
) *Controller {
	c := &Controller{
		k: k, store: store, network: network, ha: manager, boot: boot, seed: seed, stops: map[int]uint64{},
		devices: &devices{k: k, store: store, mappings: mappings},
	}
	manager.Power = c
	return c
}

// On powers a VM on and boots its guest. The caller holds the mutex.
func (c *Controller) On(g *kernel.Guest) {
	if g.PCI == nil {
		_ = c.devices.reservePCI(g) // guests of the scenario start with the devices that are available
	}
	ctx, cancel := context.WithCancel(c.k.Context())
	in := kernel.NewInstance(cancel)
	in.VMID, in.Host, in.Name, in.BootID = g.VMID, g.Host, g.Config.Options["name"], uuid.NewString()
	in.Options, in.Disk, in.Firmware = maps.Clone(g.Config.Options), c.bootDisk(g), c.devices.firmwareFiles(g)
	in.Arch = cmp.Or(g.Config.Options["arch"], c.k.Host(g.Host).Arch)
	in.Shares = c.devices.sharedDirectories(g)
	in.Media, in.Lease = func() []kernel.Medium { return c.media(g.VMID) }, c.network.Lease
	in.Current = func() (map[string]string, bool) { return c.current(g) }
	in.Drives = func() []kernel.DiskFile { return c.drives(g) }
	if g.StartedAt.IsZero() {
		g.StartedAt = time.Now()
		g.PID = c.k.NewPID()
	}
	before := g.Instance
	g.Instance, g.Paused = in, false
	c.k.Go(func() {
		defer in.Finish()
		defer cancel()
		if before != nil {
			<-before.Done() // after a reset, the old guest ends before the new one boots
		}
		c.boot(ctx, in)
		c.closeDisks(g)
		if ctx.Err() == nil {
			c.handleGuestExit(in)
		}
	})
}

// handleGuestExit updates a VM whose guest powered itself off, and boots it if it was a reboot.
func (c *Controller) handleGuestExit(in *kernel.Instance) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.Guests[in.VMID]
	if g == nil || g.Instance != in {
		return
	}
	c.markStopped(g)
	if g.Rebooting {
		g.Rebooting = false
		pending.ApplyAll(c.store, g)
		c.On(g)
	}
}

// Off cuts the power of a VM. The caller holds the mutex.
func (c *Controller) Off(g *kernel.Guest) {
	if g.Instance != nil {
		g.Instance.Cancel()
	}
	c.markStopped(g)
}

func (c *Controller) markStopped(g *kernel.Guest) {
	g.Instance, g.Paused, g.StartedAt, g.PID, g.PCI = nil, false, time.Time{}, 0, nil
}

// bootDisk returns the content of the disk that the VM boots from.
func (c *Controller) bootDisk(g *kernel.Guest) *kernel.GuestDisk {
	for _, key := range append(qm.BootOrder(g.Config.Options["boot"]), qm.DriveKeys(g.Config.Options)...) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || d.IsCDROM() || !d.HasVolume() {
			continue
		}
		if v := c.store.Volume(g.Host, d.File); v != nil {
			return v.Disk
		}
	}
	return &kernel.GuestDisk{}
}

// media returns the content of a VM's CD drives.
func (c *Controller) media(vmid int) []kernel.Medium {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.Guests[vmid]
	if g == nil {
		return nil
	}
	var out []kernel.Medium
	for _, d := range qm.VolumeDrives(g.Config.Options) {
		m := kernel.Medium{Slot: d.Key, Volume: d.File}
		switch {
		case !d.IsCDROM():
			continue
		case d.IsCloudInit():
			m.CloudInit = cloudinit.Files(c.store, g)
		default:
			m.Data = c.store.FileContent(c.store.Volume(g.Host, d.File))
		}
		out = append(out, m)
	}
	return out
}

// PowerOffGuest powers a running VM off from inside.
func (c *Controller) PowerOffGuest(vmid int) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.Guests[vmid]
	if g == nil || !g.IsRunning() {
		return api.Failf("VM %d is not running", vmid)
	}
	c.Off(g)
	c.ha.Reconcile(vmid)
	return nil
}

// SetGuestHealth sets the health of the guest of a running VM.
func (c *Controller) SetGuestHealth(vmid int, health string) error {
	if !slices.Contains([]string{kernel.Well, kernel.Sick, kernel.Hung}, health) {
		return api.Failf("health %q is not one of %s, %s, %s", health, kernel.Well, kernel.Sick, kernel.Hung)
	}
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.Guests[vmid]
	if g == nil || !g.IsRunning() || g.Instance == nil {
		return api.Failf("VM %d is not running", vmid)
	}
	return g.Instance.SetHealth(health)
}

// HostDown cuts the power of a host. Its guests and tasks end; its VMs keep their configs.
func (c *Controller) HostDown(name, how string) error {
	c.k.Mu.Lock()
	h := c.k.Host(name)
	if h == nil {
		c.k.Mu.Unlock()
		return api.Failf("there is no host '%s'", name)
	}
	c.k.SetOnline(h, false)
	h.Unreachable, h.Report, h.ShuttingDown, h.Booting = how, nil, false, false
	for _, g := range c.k.Guests {
		if g.Host == name && g.IsRunning() {
			c.Off(g)
		}
	}
	c.k.Mu.Unlock()
	c.k.Tasks.KillHost(name)
	return nil
}

// HostUp powers a host on. It starts VMs with onboot whose storages are active.
func (c *Controller) HostUp(name string) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	h := c.k.Host(name)
	if h == nil {
		return api.Failf("there is no host '%s'", name)
	}
	c.up(h)
	return nil
}

// up powers a host on. The caller holds the mutex.
func (c *Controller) up(h *kernel.Host) {
	c.k.SetOnline(h, true)
	h.BootedAt, h.Booting = time.Now(), false
	for _, g := range c.k.SortedGuests() {
		if g.Host == h.Name && g.Type == "qemu" && !g.IsRunning() && g.Config.Bool("onboot", false) && !g.Config.IsTemplate() && g.Config.Lock() == "" && c.checkVolumes(g) == nil {
			c.On(g)
		}
	}
}
