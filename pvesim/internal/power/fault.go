// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

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
	h.Online, h.Unreachable, h.Report = false, how, nil
	for _, g := range c.k.Guests {
		if g.Host == name && g.IsRunning() {
			c.Off(g)
		}
	}
	c.k.Mu.Unlock()
	c.k.Tasks.KillHost(name)
	return nil
}

// HostUp powers a host on. It starts VMs with onboot.
func (c *Controller) HostUp(name string) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	h := c.k.Host(name)
	if h == nil {
		return api.Failf("there is no host '%s'", name)
	}
	h.Online, h.BootedAt = true, time.Now()
	for _, g := range c.k.SortedGuests() {
		if g.Host == name && g.Type == "qemu" && !g.IsRunning() && g.Config.Bool("onboot", false) && !g.Config.IsTemplate() && g.Config.Lock() == "" {
			c.On(g)
		}
	}
	return nil
}
