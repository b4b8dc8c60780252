// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

type stopOptions struct {
	ask     bool // ask the guest first
	force   bool // then cut the power
	timeout time.Duration
}

// Shutdown asks the guest to shut down and cuts the power if it still runs when the timeout is over.
func (c *Controller) Shutdown(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error {
	return c.stop(ctx, t, r, stopOptions{ask: true, force: true, timeout: timeout})
}

// stop holds the VM's lock all the while it waits for the guest.
func (c *Controller) stop(ctx context.Context, t *tasks.Task, r *api.Request, o stopOptions) error {
	release, err := c.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	c.k.Mu.Lock()
	g := c.k.GuestOn(r.Host, r.VMID)
	switch {
	case g == nil:
		c.k.Mu.Unlock()
		return kernel.MissingConfig(r.Host, r.VMID)
	case !g.Running():
		c.pending.ApplyAll(g)
		c.k.Mu.Unlock()
		return nil
	case g.Config.Lock() != "" && !r.On("skiplock"):
		err := api.Failf("VM is locked (%s)", g.Config.Lock())
		c.k.Mu.Unlock()
		return err
	}
	in := g.Instance
	agent := qm.AgentEnabled(g.Config.Options["agent"])
	c.k.Mu.Unlock()
	if o.ask {
		down, err := c.askToShutDown(ctx, t, in, agent, o.timeout)
		if err != nil {
			return err
		}
		if !down && !o.force {
			return api.Failf("VM quit/powerdown failed - got timeout")
		}
		if !down {
			t.Logf("VM still running - terminating now with SIGTERM")
		}
	}
	if err := c.k.Clock.Sleep(ctx, stopTime); err != nil {
		return err
	}
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if g.Running() {
		c.Off(g)
	}
	c.pending.ApplyAll(g)
	return nil
}

// askToShutDown presses the ACPI button, or has the agent do it, and waits.
func (c *Controller) askToShutDown(ctx context.Context, t *tasks.Task, in *kernel.Instance, agent bool, timeout time.Duration) (down bool, err error) {
	if agent && in.Agent() == nil {
		if err := c.k.Clock.Sleep(ctx, agentTimeout); err != nil {
			return false, err
		}
		t.Logf(c.k.Version.AgentPingText, in.VMID)
	}
	in.RequestShutdown()
	timer := time.NewTimer(c.k.Clock.Timeout(timeout))
	defer timer.Stop()
	select {
	case <-in.Done():
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (c *Controller) IsRunning(g *kernel.Guest) bool {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	return g.Running()
}

func (c *Controller) reboot(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error {
	release, err := c.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	c.k.Mu.Lock()
	g := c.k.GuestOn(r.Host, r.VMID)
	if g == nil || !g.Running() {
		c.k.Mu.Unlock()
		return nil
	}
	in := g.Instance
	g.Rebooting = true
	agent := qm.AgentEnabled(g.Config.Options["agent"])
	c.k.Mu.Unlock()
	down, err := c.askToShutDown(ctx, t, in, agent, timeout)
	if err == nil && !down {
		err = api.Failf("VM quit/powerdown failed - got timeout")
	}
	if err != nil {
		c.k.Mu.Lock()
		g.Rebooting = false
		c.k.Mu.Unlock()
	}
	return err
}

// reset cuts the guest short and boots it again; QEMU's process stays.
func (c *Controller) reset(g *kernel.Guest) {
	g.Instance.Cancel()
	c.On(g)
}
