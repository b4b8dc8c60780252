// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm is the life of a VM of ours after it was created, whether it is that of a Node, a Template or a
// builder VM: its identity is verified right before each request that powers it off, starts, resets or destroys
// it (Verified), tasks are waited for, and the disks that a destroy leaves are deleted (Tasks).
package vm

import (
	"context"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Verified is a VM whose identity was read from its configuration. Its methods power off, start, reset
// and destroy the guest. Each reading permits one of these requests, right after it: another guest may get
// the VMID at any time, and Proxmox compares no digest in them.
type Verified struct {
	Host string
	VMID int
	// Config is the last reading.
	Config proxmox.VMConfig

	client proxmox.Client
	check  func(proxmox.VMConfig) error
	used   bool
}

// Verify reads a VM. Each reading must pass the check, which fails unless the VM is the one that is meant. It
// returns the error of the read or of the check, with what was read.
func Verify(ctx context.Context, client proxmox.Client, host string, vmid int, check func(proxmox.VMConfig) error) (*Verified, error) {
	v := &Verified{Host: host, VMID: vmid, client: client, check: check}
	return v, v.read(ctx)
}

func (v *Verified) read(ctx context.Context) error {
	cfg, err := v.client.VMConfig(ctx, v.Host, v.VMID)
	if err != nil {
		return err
	}
	v.Config, v.used = cfg, false
	return v.check(cfg)
}

// Invalidate causes the next request to read the VM again, because time has passed.
func (v *Verified) Invalidate() { v.used = true }

// do sends a request after a reading that no other request used.
func (v *Verified) do(ctx context.Context, request func() (proxmox.UPID, error)) (proxmox.UPID, error) {
	if v.used {
		if err := v.read(ctx); err != nil {
			return "", err
		}
	}
	v.used = true
	return request()
}

// PowerOff shuts the guest down within the timeout, or stops it if that is 0.
func (v *Verified) PowerOff(ctx context.Context, shutdown time.Duration) (proxmox.UPID, error) {
	return v.do(ctx, func() (proxmox.UPID, error) {
		if shutdown > 0 {
			return v.client.ShutdownVM(ctx, v.Host, v.VMID, shutdown)
		}
		return v.client.StopVM(ctx, v.Host, v.VMID)
	})
}

// Reset resets the guest.
func (v *Verified) Reset(ctx context.Context) (proxmox.UPID, error) {
	return v.do(ctx, func() (proxmox.UPID, error) { return v.client.ResetVM(ctx, v.Host, v.VMID) })
}

// Start starts the guest.
func (v *Verified) Start(ctx context.Context) (proxmox.UPID, error) {
	return v.do(ctx, func() (proxmox.UPID, error) { return v.client.StartVM(ctx, v.Host, v.VMID) })
}
