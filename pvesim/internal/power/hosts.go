// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// shutdownDelay is the time between the response to a shutdown and its start.
const shutdownDelay = 2 * time.Second

// postHostStatus shuts a host down or reboots it. It starts no task of its own, and responds before the shutdown starts.
func (c *Controller) postHostStatus(r *api.Request) error {
	h := c.k.Host(r.Host)
	if h.ShuttingDown {
		return nil
	}
	h.ShuttingDown = true
	reboot := r.Params.Values["command"] == "reboot"
	c.k.Go(func() {
		if c.k.Clock.Sleep(c.k.Context(), shutdownDelay) != nil {
			return
		}
		c.k.Mu.Lock()
		stop := c.stopGuests(h.Name)
		c.k.Mu.Unlock()
		<-stop.Done() // a host powers off even if guests could not be stopped
		if c.k.Clock.Sleep(c.k.Context(), h.ShutdownTime) != nil {
			return
		}
		c.k.Mu.Lock()
		off := !h.ShuttingDown // it lost power meanwhile
		c.k.Mu.Unlock()
		if off {
			return
		}
		_ = c.HostDown(h.Name, "noroute") // it exists
		if reboot {
			c.powerOn(h)
		}
	})
	return nil
}

// postWakeOnLAN sends a magic packet to a host. A host that is up, or about to power off, ignores it.
func (c *Controller) postWakeOnLAN(r *api.Request) (any, error) {
	name := r.Params.Values["node"]
	if serving := c.k.ServingHost(r); serving != nil && serving.Name == name {
		return nil, api.Failf("'%s' is local node, cannot wake my self!", name)
	}
	h := c.k.Host(name)
	if h == nil {
		return nil, api.Failf("no such cluster node '%s'", name)
	}
	options := h.Config["wakeonlan"]
	mac := qm.ParseFields(options)["mac"]
	if first, _, _ := strings.Cut(options, ","); mac == "" && !strings.Contains(first, "=") {
		mac = first
	}
	if mac == "" {
		return nil, api.Failf("No wake on LAN MAC address defined for '%s'!", name)
	}
	if !h.Online {
		c.k.Go(func() { c.powerOn(h) })
	}
	return mac, nil
}

// powerOn boots a host that is off and waits until it is up. A host that is up or boots already is not affected.
func (c *Controller) powerOn(h *kernel.Host) {
	c.k.Mu.Lock()
	if h.Online || h.Booting || h.BootFails {
		c.k.Mu.Unlock()
		return
	}
	h.Booting = true
	c.k.Mu.Unlock()
	err := c.k.Clock.Sleep(c.k.Context(), h.BootTime)
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if err == nil && h.Booting {
		c.up(h)
	}
}

// SetBootFails sets whether a host does not boot when it is woken.
func (c *Controller) SetBootFails(name string, fails bool) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	h := c.k.Host(name)
	if h == nil {
		return api.Failf("there is no host '%s'", name)
	}
	h.BootFails = fails
	return nil
}
