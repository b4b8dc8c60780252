// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (e *Engine) postStop(_ context.Context, r *Request) (Response, error) {
	if err := rootOption(r); err != nil {
		return Response{}, err
	}
	if e.haManaged(r.vmid) {
		return e.haRequest(r, "stop", "stopped"), nil
	}
	t := e.fork(r, "qmstop", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.stopVM(ctx, t, r, stopOptions{})
	})
	return upid(t), nil
}

func (e *Engine) postShutdown(_ context.Context, r *Request) (Response, error) {
	if err := rootOption(r); err != nil {
		return Response{}, err
	}
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	paused := g != nil && g.running() && g.paused
	e.mu.Unlock()
	force := r.on("forceStop")
	if paused && !force {
		return Response{}, failf("VM is paused - cannot shutdown")
	}
	if e.haManaged(r.vmid) {
		return e.haRequest(r, "stop", "stopped"), nil
	}
	timeout := time.Duration(r.integer("timeout", 60)) * time.Second
	t := e.fork(r, "qmshutdown", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.stopVM(ctx, t, r, stopOptions{ask: !paused, force: force, timeout: timeout})
	})
	return upid(t), nil
}

type stopOptions struct {
	ask     bool // ask the guest first
	force   bool // then cut the power
	timeout time.Duration
}

// stopVM holds the VM's lock all the while it waits for the guest.
func (e *Engine) stopVM(ctx context.Context, t *tasks.Task, r *Request, o stopOptions) error {
	release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	switch {
	case g == nil:
		e.mu.Unlock()
		return missingConfig(r.host, r.vmid)
	case !g.running():
		e.applyAllPending(g)
		e.mu.Unlock()
		return nil
	case g.Config.Lock() != "" && !r.on("skiplock"):
		err := failf("VM is locked (%s)", g.Config.Lock())
		e.mu.Unlock()
		return err
	}
	in := g.instance
	agent := agentEnabled(g.Config.Options["agent"])
	e.mu.Unlock()
	if o.ask {
		down, err := e.askToShutDown(ctx, t, in, agent, o.timeout)
		if err != nil {
			return err
		}
		if !down && !o.force {
			return failf("VM quit/powerdown failed - got timeout")
		}
		if !down {
			t.Logf("VM still running - terminating now with SIGTERM")
		}
	}
	if err := e.Clock.Sleep(ctx, stopTime); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if g.running() {
		e.powerOff(g)
	}
	e.applyAllPending(g)
	return nil
}

// askToShutDown presses the ACPI button, or has the agent do it, and waits.
func (e *Engine) askToShutDown(ctx context.Context, t *tasks.Task, in *Instance, agent bool, timeout time.Duration) (down bool, err error) {
	if agent && in.agentState() == nil {
		if err := e.Clock.Sleep(ctx, agentTimeout); err != nil {
			return false, err
		}
		t.Logf(e.Version.AgentPingText, in.VMID)
	}
	in.requestShutdown()
	timer := time.NewTimer(e.Clock.Timeout(timeout))
	defer timer.Stop()
	select {
	case <-in.done:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (e *Engine) postReboot(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	e.mu.Unlock()
	switch {
	case g == nil:
		return Response{}, failf("VM %d not running", r.vmid)
	case !e.isRunning(g):
		return Response{}, failf("VM %d not running", r.vmid)
	}
	timeout := time.Duration(r.integer("timeout", 60)) * time.Second
	t := e.fork(r, "qmreboot", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.rebootVM(ctx, t, r, timeout)
	})
	return upid(t), nil
}

func (e *Engine) isRunning(g *Guest) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return g.running()
}

func (e *Engine) rebootVM(ctx context.Context, t *tasks.Task, r *Request, timeout time.Duration) error {
	release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil || !g.running() {
		e.mu.Unlock()
		return nil
	}
	in := g.instance
	g.rebooting = true
	agent := agentEnabled(g.Config.Options["agent"])
	e.mu.Unlock()
	down, err := e.askToShutDown(ctx, t, in, agent, timeout)
	if err == nil && !down {
		err = failf("VM quit/powerdown failed - got timeout")
	}
	if err != nil {
		e.mu.Lock()
		g.rebooting = false
		e.mu.Unlock()
	}
	return err
}

// whileRunning is the form of reset, suspend and resume: a short task on a running VM.
func (e *Engine) whileRunning(typ string, act func(g *Guest)) Handler {
	return func(_ context.Context, r *Request) (Response, error) {
		if err := rootOption(r); err != nil {
			return Response{}, err
		}
		e.mu.Lock()
		g := e.guestOn(r.host, r.vmid)
		e.mu.Unlock()
		if g == nil {
			return Response{}, failf("unable to find configuration file for VM %d on node '%s'", r.vmid, r.host)
		}
		if !e.isRunning(g) {
			return Response{}, failf("VM %d not running", r.vmid)
		}
		t := e.fork(r, typ, strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
			release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
			if err != nil {
				return err
			}
			defer release()
			e.mu.Lock()
			defer e.mu.Unlock()
			if lock := g.Config.Lock(); lock != "" && !r.on("skiplock") {
				return failf("VM is locked (%s)", lock)
			}
			if !g.running() {
				return failf("VM %d not running", r.vmid)
			}
			act(g)
			return nil
		})
		return upid(t), nil
	}
}

// resetVM cuts the guest short and boots it again; QEMU's process stays.
func (e *Engine) resetVM(g *Guest) {
	g.instance.cancel()
	e.powerOn(g)
}
