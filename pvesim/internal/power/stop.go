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
	graceful bool // request a shutdown first
	force    bool // cut the power after the timeout
	timeout  time.Duration
}

// Shutdown requests the guest to shut down and cuts its power after the timeout.
func (c *Controller) Shutdown(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error {
	return c.stop(ctx, t, r, stopOptions{graceful: true, force: true, timeout: timeout})
}

// stop is the worker of stop and shutdown tasks. It holds the lock of the VM while it waits for the guest.
func (c *Controller) stop(ctx context.Context, t *tasks.Task, r *api.Request, o stopOptions) error {
	release, err := c.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	c.k.Mu.Lock()
	g := c.k.FindVM(r.Host, r.VMID)
	switch {
	case g == nil:
		c.k.Mu.Unlock()
		return kernel.MissingConfigError(r.Host, r.VMID)
	case !g.IsRunning():
		c.pending.ApplyAll(g)
		c.k.Mu.Unlock()
		return nil
	case g.Config.Lock() != "" && !r.Bool("skiplock"):
		err := api.Failf("VM is locked (%s)", g.Config.Lock())
		c.k.Mu.Unlock()
		return err
	}
	in := g.Instance
	agent := qm.AgentEnabled(g.Config.Options["agent"])
	c.k.Mu.Unlock()
	if o.graceful {
		down, err := c.requestShutdown(ctx, t, in, agent, o.timeout)
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
	if g.IsRunning() {
		c.Off(g)
	}
	c.pending.ApplyAll(g)
	return nil
}

// requestShutdown requests the guest to shut down by ACPI or agent, and waits. It returns false after the timeout.
func (c *Controller) requestShutdown(ctx context.Context, t *tasks.Task, in *kernel.Instance, agent bool, timeout time.Duration) (down bool, err error) {
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

// IsRunning reports whether a guest runs. The caller does not hold the mutex.
func (c *Controller) IsRunning(g *kernel.Guest) bool {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	return g.IsRunning()
}

func (c *Controller) reboot(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error {
	release, err := c.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	c.k.Mu.Lock()
	g := c.k.FindVM(r.Host, r.VMID)
	if g == nil || !g.IsRunning() {
		c.k.Mu.Unlock()
		return nil
	}
	in := g.Instance
	g.Rebooting = true
	agent := qm.AgentEnabled(g.Config.Options["agent"])
	c.k.Mu.Unlock()
	down, err := c.requestShutdown(ctx, t, in, agent, timeout)
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

// reset ends the guest and boots it again in the same QEMU process.
func (c *Controller) reset(g *kernel.Guest) {
	g.Instance.Cancel()
	c.On(g)
}
