// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"strconv"
	"strings"
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
func (k *Kernel) CheckLockQuorum(ctx context.Context, r *api.Request, name string) error {
	if k.CheckQuorum(r) == nil {
		return nil
	}
	if err := k.Clock.Sleep(ctx, 10*time.Second); err != nil {
		return err
	}
	return api.Failf("cfs-lock '%s' error: no quorum!", name)
}

// ChangeUserConfig changes user.cfg under its cluster-wide lock. Errors start with what.
func (k *Kernel) ChangeUserConfig(ctx context.Context, r *api.Request, what string, change func(d *access.Data) error) (api.Response, error) {
	if err := k.CheckLockQuorum(ctx, r, "file-user_cfg"); err != nil {
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

// CheckQuorum returns an error if the host that executes a request has no quorum.
func (k *Kernel) CheckQuorum(r *api.Request) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if !k.HasQuorum(k.executingHost(r)) {
		return api.Failf("cluster not ready - no quorum?")
	}
	return nil
}

// CheckWritable returns the error of a write to a file in /etc/pve of a host, which is read-only without quorum. The
// caller holds the mutex.
func (k *Kernel) CheckWritable(h *Host, file string) error {
	if !k.HasQuorum(h) {
		return api.Failf("unable to open file '%s.tmp.%d' - Permission denied", file, k.nextPID)
	}
	return nil
}

// Fork starts a task for a request. The worker starts some time after the response, so Proxmox accepts two clones to
// one VMID.
func (k *Kernel) Fork(r *api.Request, typ, id string, work tasks.Work) *tasks.Task {
	return k.Tasks.Start(r.Host, typ, id, r.Who.String(), func(ctx context.Context, t *tasks.Task) error {
		if err := k.Clock.Sleep(ctx, forkTime); err != nil {
			return err
		}
		return work(ctx, t)
	})
}

// ForkVM starts a task for the VM of a request. The worker runs under the exclusive lock of the VM.
func (k *Kernel) ForkVM(r *api.Request, typ string, work tasks.Work) *tasks.Task {
	return k.Fork(r, typ, strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		release, err := k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		return work(ctx, t)
	})
}

// TaskResponse returns the response of a call that started a task.
func TaskResponse(t *tasks.Task) (api.Response, error) {
	return api.Response{Data: t.UPID.String()}, nil
}

// WaitForTask waits for a task for at most the number of seconds in a parameter of the request. If the task ends in
// time, the response is its result, otherwise its UPID.
func (k *Kernel) WaitForTask(ctx context.Context, r *api.Request, t *tasks.Task, param string) (api.Response, error) {
	delay := r.Int(param, 0)
	if delay <= 0 {
		return TaskResponse(t)
	}
	timer := time.NewTimer(k.Clock.Real(time.Duration(delay) * time.Second))
	defer timer.Stop()
	select {
	case <-t.Done():
		if s := t.State(); s.Exit != "OK" && !strings.HasPrefix(s.Exit, "WARNINGS") {
			return api.Response{}, api.Failf("%s", s.Exit)
		}
		return api.Response{}, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return TaskResponse(t)
}
