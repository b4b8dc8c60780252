// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/keyed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// TaskDestroy is the type of the tasks that destroy a VM.
const TaskDestroy = "qmdestroy"

// LockDestroyed is the lock that Proxmox sets on a VM while it is destroyed.
const LockDestroyed = "destroyed"

// Tasks waits for Proxmox tasks, limits how many run in parallel, and destroys VMs and volumes.
type Tasks struct {
	inventory *inventory.Inventory
	polls     *proxmox.TaskPolls
	timeout   time.Duration
	clock     clock.WithTicker
	// slots limits how many tasks of a type run in parallel on a storage. Proxmox fails
	// a request that waits more than ten seconds for a storage lock and has no queue, so
	// waiting here is faster than contending there.
	slots *keyed.Semaphore[slotKey]
}

// NewTasks returns Tasks. A wait for one task ends after the timeout, and slots is how many tasks of a
// type run in parallel on a storage.
func NewTasks(i *inventory.Inventory, timeout time.Duration, slots int, c clock.WithTicker) *Tasks {
	return &Tasks{inventory: i, polls: proxmox.NewTaskPolls(), timeout: timeout, clock: c, slots: keyed.NewSemaphore[slotKey](slots)}
}

// Wait waits for the end of a task and returns the task's error.
func (t *Tasks) Wait(ctx context.Context, c proxmox.Client, task proxmox.UPID) (proxmox.TaskStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	status, err := proxmox.WaitTask(ctx, c, task, proxmox.WaitOptions{Polls: t.polls, Clock: t.clock})
	if err != nil {
		return status, err
	}
	return status, status.Err()
}

// DeleteVolume deletes a volume and waits for the end of the task. It succeeds if the
// volume does not exist.
func (t *Tasks) DeleteVolume(ctx context.Context, c proxmox.Client, host, volume string) error {
	task, err := c.DeleteVolume(ctx, host, volume)
	if err == nil {
		_, err = t.Wait(ctx, c, task)
	}
	if err != nil && !errors.Is(err, proxmox.ErrNotFound) {
		return fmt.Errorf("deleting volume %s on host %s: %w", volume, host, err)
	}
	return nil
}

// AcquireSlot waits until a task of a type may run on a storage. The returned function
// releases the slot.
func (t *Tasks) AcquireSlot(ctx context.Context, kind, region, host, storage string) (release func(), err error) {
	key := slotKey{kind: kind, region: region, host: host, storage: storage}
	if state, ok := t.inventory.View().Storage(region, host, storage); ok && state.Shared {
		key.host = ""
	}
	return t.slots.Acquire(ctx, key)
}

// slotKey is what parallel tasks contend for: a storage on a Host, or a shared storage
// in the whole Cluster (Host empty), since its lock is cluster-wide. Destroys have
// separate slots: they take seconds and would wait for clones that take minutes.
type slotKey struct{ kind, region, host, storage string }

// StaleLockMessage explains how to delete a VM that a crashed task left locked: an API
// token can neither unlock nor destroy it.
func StaleLockMessage(vmid int, host, lock string) string {
	command := fmt.Sprintf("qm unlock %[1]d && qm destroy %[1]d", vmid)
	if lock == LockDestroyed {
		// Its configuration may not list the disks any more. Without a check by the user,
		// --destroy-unreferenced-disks could delete volumes of other owners.
		command = fmt.Sprintf("qm destroy %[1]d --skiplock 1; list remaining disks with pvesm list STORAGE --vmid %[1]d and delete those of this VM with pvesm free", vmid)
	}
	return fmt.Sprintf("VM %d on host %s is locked (%s) by a task that no longer runs, probably after a crash; if nothing uses the VM, run there as root: %s",
		vmid, host, lock, command)
}
