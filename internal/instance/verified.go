// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// VerifiedVM is a VM whose identity was read from its configuration. Its methods power off, start, reset
// and destroy the guest. Each reading permits one of these requests, right after it: another guest may get
// the VMID at any time, and Proxmox compares no digest in them.
type VerifiedVM struct {
	Identity
	Host string
	// Config is the last reading.
	Config proxmox.VMConfig

	client proxmox.Client
	check  func(proxmox.VMConfig) error
	used   bool
}

// VerifyVM reads a VM. Each reading must pass the check, if there is one, and be that of the VM with the identity. It
// returns the error of the read or of the check, with what was read.
func VerifyVM(ctx context.Context, client proxmox.Client, id Identity, host string, check func(proxmox.VMConfig) error) (*VerifiedVM, error) {
	v := &VerifiedVM{Identity: id, Host: host, client: client, check: check}
	return v, v.read(ctx)
}

func (v *VerifiedVM) read(ctx context.Context) error {
	cfg, err := v.client.VMConfig(ctx, v.Host, v.VMID)
	if err != nil {
		return err
	}
	v.Config, v.used = cfg, false
	if v.check != nil {
		if err := v.check(cfg); err != nil {
			return err
		}
	}
	if owns, why := v.Owns(cfg); !owns || cfg.IsTemplate() {
		return fmt.Errorf("VM %d on host %s is not the VM that was verified: %s", v.VMID, v.Host, why)
	}
	return nil
}

// Invalidate causes the next request to read the VM again, because time has passed.
func (v *VerifiedVM) Invalidate() { v.used = true }

// do sends a request after a reading that no other request used.
func (v *VerifiedVM) do(ctx context.Context, request func() (proxmox.UPID, error)) (proxmox.UPID, error) {
	if v.used {
		if err := v.read(ctx); err != nil {
			return "", err
		}
	}
	v.used = true
	return request()
}

// PowerOff shuts the guest down within the timeout, or stops it if that is 0.
func (v *VerifiedVM) PowerOff(ctx context.Context, shutdown time.Duration) (proxmox.UPID, error) {
	return v.do(ctx, func() (proxmox.UPID, error) {
		if shutdown > 0 {
			return v.client.ShutdownVM(ctx, v.Host, v.VMID, shutdown)
		}
		return v.client.StopVM(ctx, v.Host, v.VMID)
	})
}

// Destroy destroys the VM.
func (v *VerifiedVM) Destroy(ctx context.Context) (proxmox.UPID, error) {
	return v.do(ctx, func() (proxmox.UPID, error) { return v.client.DestroyVM(ctx, v.Host, v.VMID) })
}

// Reset resets the guest.
func (v *VerifiedVM) Reset(ctx context.Context) (proxmox.UPID, error) {
	return v.do(ctx, func() (proxmox.UPID, error) { return v.client.ResetVM(ctx, v.Host, v.VMID) })
}

// Start starts the guest.
func (v *VerifiedVM) Start(ctx context.Context) (proxmox.UPID, error) {
	return v.do(ctx, func() (proxmox.UPID, error) { return v.client.StartVM(ctx, v.Host, v.VMID) })
}
