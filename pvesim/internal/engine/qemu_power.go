// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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

func (e *Engine) getLXCConfig(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[r.vmid]
	if g == nil || g.Host != r.host || g.Type != "lxc" {
		return Response{}, failf("Configuration file 'nodes/%s/lxc/%d.conf' does not exist", r.host, r.vmid)
	}
	out := row{"digest": g.Config.Digest()}
	for k, v := range g.Config.Options {
		out[k] = e.typed(k, v)
	}
	return Response{Data: out}, nil
}

// index answers the sub-directories of a path.
func index(key string, names ...string) Handler {
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
	err = e.Clock.Sleep(ctx, startTime+time.Duration(nics)*nicTime)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		err = e.plugNICs(t, g)
	}
	if err != nil {
		g.pci = nil
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
	if err := e.checkSnippets(g); err != nil {
		return err
	}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && d.IsCloudInit() {
			t.Logf("generating cloud-init ISO")
		}
	}
	if host := e.host(g.Host); g.Config.Int("sockets", 1)*g.Config.Int("cores", 1) > int64(host.CPUs()) {
		return failf("MAX %d vcpus allowed per VM on this node", host.CPUs())
	}
	for _, check := range []func() error{
		func() error { return e.checkFirmwareFiles(t, g) },
		func() error { return e.checkNUMA(g) },
		func() error { return e.checkShares(g) },
		func() error { return e.reservePCI(g) },
	} {
		if err := check(); err != nil {
			return err
		}
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

func (e *Engine) checkFirmwareFiles(t *tasks.Task, g *Guest) error {
	files := e.firmwareFiles(g)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] == nil {
			t.Logf("kvm: -fw_cfg name=%s: can't load the file", name)
			return failf("start failed: QEMU exited with code 1")
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

// checkSnippets fails if a snippet that the VM's cicustom option names does not exist.
func (e *Engine) checkSnippets(g *Guest) error {
	snippets := qm.ParseFields(g.Config.Options["cicustom"])
	for _, kind := range slices.Sorted(maps.Keys(snippets)) {
		if err := e.volumeMustExist(g.Host, snippets[kind]); err != nil {
			return err
		}
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
	return e.vnets.has(name)
}
