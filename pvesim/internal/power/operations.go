// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pending"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (h *handlers) postStart(_ context.Context, r *api.Request) (api.Response, error) {
	if err := h.k.CheckQuorum(r); err != nil {
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
	return stopTask(h.Controller, r, "qmstop", stopOptions{})
}

func (h *handlers) postShutdown(_ context.Context, r *api.Request) (api.Response, error) {
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

// handlers serves the power operations and the guest agent.
type handlers struct{ *Controller }

// Routes returns the handlers of power operations and the guest agent by method.
func (c *Controller) Routes() map[string]api.Handler {
	h := handlers{c}
	const vm = " /nodes/{node}/qemu/{vmid}"
	return map[string]api.Handler{
		"POST /nodes/{node}/status":                  kernel.Change(c.k, c.postHostStatus),
		"POST /nodes/{node}/wakeonlan":               kernel.Read(c.k, c.postWakeOnLAN),
		"POST" + vm + "/status/start":                h.postStart,
		"POST" + vm + "/status/stop":                 h.postStop,
		"POST" + vm + "/status/shutdown":             h.postShutdown,
		"POST" + vm + "/status/reboot":               h.postReboot,
		"POST" + vm + "/status/reset":                h.runningVMTask("qmreset", c.reset),
		"POST" + vm + "/status/suspend":              h.postSuspend,
		"POST" + vm + "/status/resume":               h.postResume,
		"POST" + vm + "/agent/ping":                  h.agentCall(func(*kernel.Agent) any { return api.Row{} }),
		"GET" + vm + "/agent/info":                   h.agentCall(func(*kernel.Agent) any { return api.Row{"version": "9.2.0"} }),
		"GET" + vm + "/agent/get-osinfo":             h.agentCall(func(a *kernel.Agent) any { return a.OS }),
		"GET" + vm + "/agent/get-host-name":          h.agentCall(func(a *kernel.Agent) any { return api.Row{"host-name": a.Hostname} }),
		"GET" + vm + "/agent/network-get-interfaces": h.agentCall(agentInterfaces),
		"GET" + vm + "/agent/file-read":              h.getFile,
		"POST" + vm + "/agent/exec":                  h.postExec,
		"GET" + vm + "/agent/exec-status":            h.postExec,
		"POST" + vm + "/monitor":                     h.postMonitor,
		"POST" + vm + "/termproxy":                   h.postConsole(false),
		"POST" + vm + "/vncproxy":                    h.postConsole(true),
	}
}

// Start is the worker of a start task. The caller holds the lock of the VM.
func (c *Controller) Start(ctx context.Context, t *tasks.Task, r *api.Request) error {
	c.k.Mu.Lock()
	g := c.k.FindVM(r.Host, r.VMID)
	err := checkStartable(g, r)
	nics := 0
	if err == nil {
		pending.ApplyAll(c.store, g)
		err = c.prepareStart(t, g)
		nics = len(qm.NetKeys(g.Config.Options))
	}
	c.k.Mu.Unlock()
	if err != nil {
		return err
	}
	err = c.k.Clock.Sleep(ctx, startTime+time.Duration(nics)*nicTime)
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if err == nil {
		err = c.plugNICs(t, g)
	}
	if err != nil {
		g.PCI = nil
		return err
	}
	if g.Config.Lock() == suspendedLock {
		delete(g.Config.Options, "lock")
	}
	c.On(g)
	return nil
}

func checkStartable(g *kernel.Guest, r *api.Request) error {
	switch {
	case g == nil:
		return kernel.MissingConfigError(r.Host, r.VMID)
	case g.Config.IsTemplate():
		return api.Failf("you can't start a vm if it's a template")
	case g.Config.Lock() != "" && g.Config.Lock() != suspendedLock && !r.Bool("skiplock"):
		return api.Failf("VM is locked (%s)", g.Config.Lock())
	case g.IsRunning():
		return api.Failf("VM %d already running", r.VMID)
	}
	return nil
}

// prepareStart checks what Proxmox does not check before a start, in its order.
func (c *Controller) prepareStart(t *tasks.Task, g *kernel.Guest) error {
	if err := cloudinit.CheckSnippets(c.store, g); err != nil {
		return err
	}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && d.IsCloudInit() {
			t.Logf("generating cloud-init ISO")
		}
	}
	if host := c.k.Host(g.Host); g.Config.Int("sockets", 1)*g.Config.Int("cores", 1) > int64(host.CPUs()) {
		return api.Failf("MAX %d vcpus allowed per VM on this node", host.CPUs())
	}
	for _, check := range []func() error{
		func() error { return c.devices.checkFirmwareFiles(t, g) },
		func() error { return c.devices.checkNUMA(g) },
		func() error { return c.devices.checkSharedDirectories(g) },
		func() error { return c.devices.reservePCI(g) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return c.checkVolumes(g)
}

func (c *Controller) checkVolumes(g *kernel.Guest) error {
	for _, d := range qm.VolumeDrives(g.Config.Options) {
		if err := c.store.CheckVolume(g.Host, d.File); err != nil {
			return err
		}
	}
	return nil
}

// plugNICs runs the bridge scripts. They fail if a bridge does not exist, which Proxmox does not check earlier.
func (c *Controller) plugNICs(t *tasks.Task, g *kernel.Guest) error {
	for _, key := range qm.NetKeys(g.Config.Options) {
		bridge := qm.ParseNet(g.Config.Options[key]).Opts["bridge"]
		if bridge == "" || c.network.HasBridge(g.Host, bridge) {
			continue
		}
		if c.k.Version.BridgeErrorInTask {
			return api.Failf("bridge '%s' does not exist", bridge)
		}
		script := "/usr/libexec/qemu-server/pve-bridge"
		t.Logf("bridge '%s' does not exist", bridge)
		t.Logf("qemu-system-x86_64: -netdev type=tap,id=%s,ifname=tap%di%s,script=%s,downscript=%sdown: network script %s failed with status 512",
			key, g.VMID, strings.TrimPrefix(key, "net"), script, script, script)
		return api.Failf("start failed: QEMU exited with code 1")
	}
	return nil
}

type stopOptions struct {
	graceful bool // request a shutdown first
	force    bool // cut the power after the timeout
	timeout  time.Duration
}

// Shutdown requests the guest to shut down and cuts its power after the timeout. The caller holds the lock of the VM.
func (c *Controller) Shutdown(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error {
	return c.stop(ctx, t, r, stopOptions{graceful: true, force: true, timeout: timeout})
}

// stop is the worker of stop and shutdown tasks. The caller holds the lock of the VM, also while it waits for the guest.
func (c *Controller) stop(ctx context.Context, t *tasks.Task, r *api.Request, o stopOptions) error {
	c.k.Mu.Lock()
	g := c.k.FindVM(r.Host, r.VMID)
	switch {
	case g == nil:
		c.k.Mu.Unlock()
		return kernel.MissingConfigError(r.Host, r.VMID)
	case !g.IsRunning():
		pending.ApplyAll(c.store, g)
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
	if err := c.k.Clock.Sleep(ctx, c.stopTime(r.VMID)); err != nil {
		return err
	}
	c.k.Mu.Lock()
	if g.IsRunning() {
		c.Off(g)
	}
	c.k.Mu.Unlock()
	select {
	case <-in.Done(): // QEMU has released the disks
	case <-ctx.Done():
		return ctx.Err()
	}
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	pending.ApplyAll(c.store, g)
	return nil
}

// stopTime returns how long the next stop of a VM takes. It depends on the seed, the VM and its earlier stops only.
func (c *Controller) stopTime(vmid int) time.Duration {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	c.stops[vmid]++
	return stopTimes[rand.New(rand.NewPCG(c.seed, uint64(vmid)<<32|c.stops[vmid])).IntN(len(stopTimes))] //nolint:gosec // deterministic by design
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

func (c *Controller) reboot(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error {
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
