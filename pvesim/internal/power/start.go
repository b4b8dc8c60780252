// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Start is the worker of a start task.
func (c *Controller) Start(ctx context.Context, t *tasks.Task, host string, vmid int, skipLock bool) error {
	release, err := c.k.LockGuest(ctx, t, host, vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	c.k.Mu.Lock()
	g := c.k.FindVM(host, vmid)
	if err := checkStartable(g, host, vmid, skipLock); err != nil {
		c.k.Mu.Unlock()
		return err
	}
	c.pending.ApplyAll(g)
	err = c.prepareStart(t, g)
	nics := len(qm.NetKeys(g.Config.Options))
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
	c.On(g)
	return nil
}

func checkStartable(g *kernel.Guest, host string, vmid int, skipLock bool) error {
	switch {
	case g == nil:
		return kernel.MissingConfigError(host, vmid)
	case g.Config.IsTemplate():
		return api.Failf("you can't start a vm if it's a template")
	case g.Config.Lock() != "" && !skipLock:
		return api.Failf("VM is locked (%s)", g.Config.Lock())
	case g.IsRunning():
		return api.Failf("VM %d already running", vmid)
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
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() {
			continue
		}
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
