// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// PowerOffGuest ends a running VM from inside.
func (c *Controller) PowerOffGuest(vmid int) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.Guests[vmid]
	if g == nil || !g.Running() {
		return api.Failf("VM %d is not running", vmid)
	}
	c.Off(g)
	c.ha.Follow(vmid)
	return nil
}

// SetGuestHealth makes the guest of a running VM ill or well.
func (c *Controller) SetGuestHealth(vmid int, health string) error {
	if !slices.Contains([]string{kernel.Well, kernel.Sick, kernel.Hung}, health) {
		return api.Failf("health %q is not one of %s, %s, %s", health, kernel.Well, kernel.Sick, kernel.Hung)
	}
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.Guests[vmid]
	if g == nil || !g.Running() || g.Instance == nil {
		return api.Failf("VM %d is not running", vmid)
	}
	return g.Instance.SetHealth(health)
}

// HostDown cuts a host's power: its guests and tasks end, its VMs keep their configs.
func (c *Controller) HostDown(name, how string) error {
	c.k.Mu.Lock()
	h := c.k.Host(name)
	if h == nil {
		c.k.Mu.Unlock()
		return api.Failf("there is no host '%s'", name)
	}
	h.Online, h.Unreachable, h.Report = false, how, nil
	for _, g := range c.k.Guests {
		if g.Host == name && g.Running() {
			c.Off(g)
		}
	}
	c.k.Mu.Unlock()
	c.k.Tasks.KillHost(name)
	return nil
}

// HostUp powers a host on again. VMs with onboot start, all others stay stopped.
func (c *Controller) HostUp(name string) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	h := c.k.Host(name)
	if h == nil {
		return api.Failf("there is no host '%s'", name)
	}
	h.Online, h.BootedAt = true, time.Now()
	for _, g := range c.k.SortedGuests() {
		if g.Host == name && g.Type == "qemu" && !g.Running() && g.Config.On("onboot", false) && !g.Config.IsTemplate() && g.Config.Lock() == "" {
			c.On(g)
		}
	}
	return nil
}
