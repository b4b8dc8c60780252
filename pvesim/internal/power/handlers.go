// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (h *handlers) postStart(_ context.Context, r *api.Request) (api.Response, error) {
	if err := api.CheckSkipLock(r); err != nil {
		return api.Response{}, err
	}
	if err := h.k.CheckQuorum(); err != nil {
		return api.Response{}, err
	}
	if h.ha.IsManaged(r.VMID) {
		return h.ha.RequestState(r, "start", "started")
	}
	return kernel.TaskResponse(h.k.ForkVM(r, "qmstart", func(ctx context.Context, t *tasks.Task) error { return h.Start(ctx, t, r) }))
}

// stopTask starts the task of a stop or shutdown, or requests it from the HA manager.
func stopTask(c *Controller, r *api.Request, typ string, o stopOptions) (api.Response, error) {
	if c.ha.IsManaged(r.VMID) {
		return c.ha.RequestState(r, "stop", "stopped")
	}
	return kernel.TaskResponse(c.k.ForkVM(r, typ, func(ctx context.Context, t *tasks.Task) error { return c.stop(ctx, t, r, o) }))
}

func (h *handlers) postStop(_ context.Context, r *api.Request) (api.Response, error) {
	if err := api.CheckSkipLock(r); err != nil {
		return api.Response{}, err
	}
	return stopTask(h.Controller, r, "qmstop", stopOptions{})
}

func (h *handlers) postShutdown(_ context.Context, r *api.Request) (api.Response, error) {
	if err := api.CheckSkipLock(r); err != nil {
		return api.Response{}, err
	}
	h.k.Mu.Lock()
	g := h.k.FindVM(r.Host, r.VMID)
	paused := g != nil && g.IsRunning() && g.Paused
	h.k.Mu.Unlock()
	if paused && !r.Bool("forceStop") {
		return api.Response{}, api.Failf("VM is paused - cannot shutdown")
	}
	return stopTask(h.Controller, r, "qmshutdown", stopOptions{graceful: !paused, force: r.Bool("forceStop"), timeout: shutdownTimeout(r)})
}

func shutdownTimeout(r *api.Request) time.Duration {
	return time.Duration(r.Int("timeout", 60)) * time.Second
}

func (h *handlers) postReboot(_ context.Context, r *api.Request) (api.Response, error) {
	h.k.Mu.Lock()
	g := h.k.FindVM(r.Host, r.VMID)
	running := g != nil && g.IsRunning()
	h.k.Mu.Unlock()
	if !running {
		return api.Response{}, api.Failf("VM %d not running", r.VMID)
	}
	return kernel.TaskResponse(h.k.ForkVM(r, "qmreboot", func(ctx context.Context, t *tasks.Task) error {
		return h.reboot(ctx, t, r, shutdownTimeout(r))
	}))
}

// runningVMTask returns the handler of reset, suspend and resume: a short task on a running VM.
func (h *handlers) runningVMTask(typ string, act func(g *kernel.Guest)) api.Handler {
	return func(_ context.Context, r *api.Request) (api.Response, error) {
		if err := api.CheckSkipLock(r); err != nil {
			return api.Response{}, err
		}
		h.k.Mu.Lock()
		defer h.k.Mu.Unlock()
		g := h.k.FindVM(r.Host, r.VMID)
		switch {
		case g == nil:
			return api.Response{}, api.Failf("unable to find configuration file for VM %d on node '%s'", r.VMID, r.Host)
		case !g.IsRunning():
			return api.Response{}, api.Failf("VM %d not running", r.VMID)
		}
		return kernel.TaskResponse(h.k.ForkVM(r, typ, func(context.Context, *tasks.Task) error {
			h.k.Mu.Lock()
			defer h.k.Mu.Unlock()
			if lock := g.Config.Lock(); lock != "" && !r.Bool("skiplock") {
				return api.Failf("VM is locked (%s)", lock)
			}
			if !g.IsRunning() {
				return api.Failf("VM %d not running", r.VMID)
			}
			act(g)
			return nil
		}))
	}
}

// findAgent returns the running guest agent. If there is none, it fails after the timeout of a ping.
func (h *handlers) findAgent(ctx context.Context, r *api.Request) (*kernel.Agent, error) {
	h.k.Mu.Lock()
	g := h.k.FindVM(r.Host, r.VMID)
	var in *kernel.Instance
	var err error
	switch {
	case g == nil:
		err = kernel.MissingConfigError(r.Host, r.VMID)
	case !qm.AgentEnabled(g.Config.Options["agent"]):
		err = api.Failf("No QEMU guest agent configured")
	case !g.IsRunning() || g.Instance == nil:
		err = api.Failf("VM %d is not running", r.VMID)
	default:
		in = g.Instance
	}
	h.k.Mu.Unlock()
	if err != nil {
		return nil, err
	}
	if a := in.Agent(); a != nil {
		return a, nil
	}
	if err := h.k.Clock.Sleep(ctx, agentTimeout); err != nil {
		return nil, err
	}
	return nil, api.Failf("QEMU guest agent is not running")
}

// agentCall returns the handler of a guest agent command.
func (h *handlers) agentCall(result func(a *kernel.Agent) any) api.Handler {
	return func(ctx context.Context, r *api.Request) (api.Response, error) {
		a, err := h.findAgent(ctx, r)
		if err != nil {
			return api.Response{}, err
		}
		return api.Response{Data: api.Row{"result": result(a)}}, nil
	}
}

func agentInterfaces(a *kernel.Agent) any {
	if a.Interfaces == nil {
		return []api.Row{}
	}
	return a.Interfaces
}

// handlers serves the power operations and the guest agent.
type handlers struct{ *Controller }

// Routes returns the handlers of power operations and the guest agent by method.
func (c *Controller) Routes() map[string]api.Handler {
	h := handlers{c}
	const vm = " /nodes/{node}/qemu/{vmid}"
	return map[string]api.Handler{
		"POST" + vm + "/status/start":                h.postStart,
		"POST" + vm + "/status/stop":                 h.postStop,
		"POST" + vm + "/status/shutdown":             h.postShutdown,
		"POST" + vm + "/status/reboot":               h.postReboot,
		"POST" + vm + "/status/reset":                h.runningVMTask("qmreset", c.reset),
		"POST" + vm + "/status/suspend":              h.runningVMTask("qmpause", func(g *kernel.Guest) { g.Paused = true }),
		"POST" + vm + "/status/resume":               h.runningVMTask("qmresume", func(g *kernel.Guest) { g.Paused = false }),
		"POST" + vm + "/agent/ping":                  h.agentCall(func(*kernel.Agent) any { return api.Row{} }),
		"GET" + vm + "/agent/info":                   h.agentCall(func(*kernel.Agent) any { return api.Row{"version": "9.2.0"} }),
		"GET" + vm + "/agent/get-osinfo":             h.agentCall(func(a *kernel.Agent) any { return a.OS }),
		"GET" + vm + "/agent/get-host-name":          h.agentCall(func(a *kernel.Agent) any { return api.Row{"host-name": a.Hostname} }),
		"GET" + vm + "/agent/network-get-interfaces": h.agentCall(agentInterfaces),
	}
}
