// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// LockGuest acquires the file lock of a VM's config on its host.
func (k *Kernel) LockGuest(ctx context.Context, t *tasks.Task, host string, vmid int, mode locks.Mode, timeout time.Duration) (func(), error) {
	return k.FileLock(ctx, t, host, "/var/lock/qemu-server/lock-"+strconv.Itoa(vmid)+".conf", mode, timeout)
}

// HoldGuestLock acquires the file lock of a VM until release is called.
func (k *Kernel) HoldGuestLock(ctx context.Context, host string, vmid int) (release func(), err error) {
	return k.LockGuest(ctx, nil, host, vmid, locks.Exclusive, 10*time.Second)
}

// FileLock acquires a file lock. If it has to wait, the log of the task shows it; t can be nil.
func (k *Kernel) FileLock(ctx context.Context, t *tasks.Task, host, file string, mode locks.Mode, timeout time.Duration) (func(), error) {
	waited := false
	release, err := k.Locks.File(ctx, host, file, mode, timeout, func() {
		waited = true
		if t != nil {
			t.Logf("trying to acquire lock...")
		}
	})
	if err == nil && waited && t != nil {
		t.Logf(" OK")
	}
	return release, err
}

// CheckLockQuorum returns an error if the cluster has no quorum: cluster-wide locks then fail after their timeout.
func (k *Kernel) CheckLockQuorum(ctx context.Context, name string) error {
	if k.CheckQuorum() == nil {
		return nil
	}
	if err := k.Clock.Sleep(ctx, 10*time.Second); err != nil {
		return err
	}
	return api.Failf("cfs-lock '%s' error: no quorum!", name)
}

// ChangeUserConfig changes user.cfg under its cluster-wide lock. Errors start with what.
func (k *Kernel) ChangeUserConfig(ctx context.Context, what string, change func(d *access.Data) error) (api.Response, error) {
	if err := k.CheckLockQuorum(ctx, "file-user_cfg"); err != nil {
		return api.Response{}, api.Failf("%s failed: %v", what, err)
	}
	release, err := k.Locks.Cluster(ctx, "file-user_cfg", 10*time.Second)
	if err != nil {
		return api.Response{}, api.Failf("%s failed: %v", what, err)
	}
	defer release()
	if err := k.Access.Update(change); err != nil {
		return api.Response{}, api.Failf("%s failed: %v", what, err)
	}
	return api.Response{}, nil
}
