// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (e *Engine) getQemuList(_ context.Context, r *Request) (Response, error) {
	may := e.Access.Viewer(r.Who)
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	for _, g := range e.sortedGuests() {
		if g.Host == r.host && g.Type == "qemu" && may.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
			rows = append(rows, e.guestStatus(g, r.on("full")))
		}
	}
	return Response{Data: rows}, nil
}

func (e *Engine) getLXCList(_ context.Context, r *Request) (Response, error) {
	may := e.Access.Viewer(r.Who)
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	for _, g := range e.sortedGuests() {
		if g.Host == r.host && g.Type == "lxc" && may.Has("/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
			out := e.guestStatus(g, false)
			out["type"] = "lxc"
			rows = append(rows, out)
		}
	}
	return Response{Data: rows}, nil
}

// index answers the sub-directories of a path.
func (e *Engine) index(key string, names ...string) Handler {
	rows := make([]row, 0, len(names))
	for _, n := range names {
		rows = append(rows, row{key: n})
	}
	return func(context.Context, *Request) (Response, error) { return Response{Data: rows}, nil }
}

func (e *Engine) getStatus(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	out := e.guestStatus(g, true)
	out["ha"] = e.haStatus(g.VMID)
	if _, hasVGA := g.Config.Options["vga"]; hasVGA {
		out["clipboard"] = nil
	}
	if agentEnabled(g.Config.Options["agent"]) {
		out["agent"] = 1
	}
	return Response{Data: out}, nil
}

func agentEnabled(v string) bool {
	first, _, _ := strings.Cut(v, ",")
	return first == "1" || first == "enabled=1" || strings.Contains(v, "enabled=1")
}

// rootOption refuses skiplock to everybody but root's own login.
func rootOption(r *Request) error {
	if r.on("skiplock") && !r.Who.IsRoot() {
		return badParam("skiplock", "Only root may use this option.")
	}
	return nil
}

func (e *Engine) postStart(_ context.Context, r *Request) (Response, error) {
	if err := rootOption(r); err != nil {
		return Response{}, err
	}
	if err := e.checkQuorum(); err != nil {
		return Response{}, err
	}
	if e.haManaged(r.vmid) {
		return e.haRequest(r, "start", "started"), nil
	}
	t := e.fork(r, "qmstart", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.startVM(ctx, t, r.host, r.vmid, r.on("skiplock"))
	})
	return upid(t), nil
}

// startVM is the start worker.
func (e *Engine) startVM(ctx context.Context, t *tasks.Task, host string, vmid int, skipLock bool) error {
	release, err := e.lockGuest(ctx, t, host, vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	e.mu.Lock()
	g := e.guestOn(host, vmid)
	if err := startable(g, host, vmid, skipLock); err != nil {
		e.mu.Unlock()
		return err
	}
	e.applyAllPending(g)
	err = e.prepareStart(t, g)
	nics := len(qm.NetKeys(g.Config.Options))
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if err := e.Clock.Sleep(ctx, startTime+time.Duration(nics)*nicTime); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.plugNICs(t, g); err != nil {
		return err
	}
	e.powerOn(g)
	return nil
}

func startable(g *Guest, host string, vmid int, skipLock bool) error {
	switch {
	case g == nil:
		return missingConfig(host, vmid)
	case g.Config.IsTemplate():
		return failf("you can't start a vm if it's a template")
	case g.Config.Lock() != "" && !skipLock:
		return failf("VM is locked (%s)", g.Config.Lock())
	case g.running():
		return failf("VM %d already running", vmid)
	}
	return nil
}

// prepareStart checks what create and config accept without looking, in the order in which a start meets it.
func (e *Engine) prepareStart(t *tasks.Task, g *Guest) error {
	for _, volid := range sortedValues(qm.ParseFields(g.Config.Options["cicustom"])) {
		if err := e.volumeMustExist(g.Host, volid); err != nil {
			return err
		}
	}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && d.IsCloudInit() {
			t.Logf("generating cloud-init ISO")
		}
	}
	if host := e.host(g.Host); g.Config.Int("sockets", 1)*g.Config.Int("cores", 1) > int64(host.CPUs()) {
		return failf("MAX %d vcpus allowed per VM on this node", host.CPUs())
	}
	if err := e.checkNUMA(g); err != nil {
		return err
	}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() {
			continue
		}
		if err := e.volumeMustExist(g.Host, d.File); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) volumeMustExist(host, volid string) error {
	id, _, _ := strings.Cut(volid, ":")
	if _, err := e.checkStorage(id, host); err != nil {
		return err
	}
	if e.volume(host, volid) == nil {
		return failf("volume '%s' does not exist", volid)
	}
	return nil
}

func sortedValues(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for _, k := range sortedKeys(m) {
		out = append(out, m[k])
	}
	return out
}

func (e *Engine) checkNUMA(g *Guest) error {
	if !g.Config.On("numa", false) {
		return nil
	}
	var total int64
	found := false
	for i := range 8 {
		v, ok := g.Config.Options["numa"+strconv.Itoa(i)]
		if !ok {
			continue
		}
		found = true
		fields := qm.ParseFields(v)
		total += qm.Number(fields["memory"], 0)
		if n := qm.Number(fields["hostnodes"], 0); int(n) >= max(e.host(g.Host).NUMANodes, 1) {
			return failf("host NUMA node%d doesn't exist", n)
		}
	}
	if found && total != g.Config.Int("memory", 512) {
		return failf("total memory for NUMA nodes must be equal to vm static memory")
	}
	return nil
}

// plugNICs runs the bridge scripts: only here a missing bridge shows.
func (e *Engine) plugNICs(t *tasks.Task, g *Guest) error {
	for _, key := range qm.NetKeys(g.Config.Options) {
		bridge := qm.ParseNet(g.Config.Options[key]).Opts["bridge"]
		if bridge == "" || e.hasBridge(g.Host, bridge) {
			continue
		}
		if e.Version.BridgeErrorInTask {
			return failf("bridge '%s' does not exist", bridge)
		}
		script := "/usr/libexec/qemu-server/pve-bridge"
		t.Logf("bridge '%s' does not exist", bridge)
		t.Logf("qemu-system-x86_64: -netdev type=tap,id=%s,ifname=tap%di%s,script=%s,downscript=%sdown: network script %s failed with status 512",
			key, g.VMID, strings.TrimPrefix(key, "net"), script, script, script)
		return failf("start failed: QEMU exited with code 1")
	}
	return nil
}

func (e *Engine) hasBridge(host, name string) bool {
	for _, b := range e.host(host).Bridges {
		if b.Name == name {
			return true
		}
	}
	return e.vnets.items[name] != nil
}

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
		e.mu.Unlock()
		return failf("VM is locked (%s)", g.Config.Lock())
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

func haID(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

func (e *Engine) haManaged(vmid int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ha[haID(vmid)] != nil
}

func (e *Engine) haStatus(vmid int) row {
	res := e.ha[haID(vmid)]
	if res == nil {
		return row{"managed": 0}
	}
	out := row{"managed": 1, "state": nil}
	if !e.Version.HAGroupsMigrated {
		out["group"] = nil
	}
	return out
}

// haRequest only asks: the HA manager acts on its next rounds.
func (e *Engine) haRequest(r *Request, verb, state string) Response {
	t := e.fork(r, "ha"+verb, strconv.Itoa(r.vmid), func(_ context.Context, t *tasks.Task) error {
		t.Logf("Requesting HA %s for VM %d", verb, r.vmid)
		e.mu.Lock()
		if res := e.ha[haID(r.vmid)]; res != nil {
			res["state"] = state
		}
		e.mu.Unlock()
		e.haFollow(r.host, r.vmid, state)
		return nil
	})
	return upid(t)
}

// haFollow lets the manager carry out a request some seconds later, in root's name.
func (e *Engine) haFollow(host string, vmid int, state string) {
	root := &Request{Who: access.Identity{User: access.Root}, host: host, vmid: vmid}
	e.group.Go(func() {
		if e.Clock.Sleep(e.ctx, 5*time.Second) != nil {
			return
		}
		if state == "started" {
			e.fork(root, "qmstart", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
				return e.startVM(ctx, t, host, vmid, false)
			})
			return
		}
		e.fork(root, "qmshutdown", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
			return e.stopVM(ctx, t, root, stopOptions{ask: true, force: true, timeout: time.Minute})
		})
	})
}
