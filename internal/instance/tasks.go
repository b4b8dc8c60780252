// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

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

// Types of Proxmox tasks.
const (
	TaskClone   = "qmclone"
	TaskDestroy = "qmdestroy"
	// taskStopAll stops all guests of a Host. Proxmox starts it when the Host shuts down.
	taskStopAll = "stopall"
)

// Locks that Proxmox sets in a VM's configuration.
const (
	// LockSuspended: the VM was suspended to disk. A start resumes it.
	LockSuspended = "suspended"
	// LockClone: a clone still writes the configuration.
	LockClone = "clone"
	// LockDestroyed: the VM is being destroyed.
	LockDestroyed = "destroyed"
)

// Tasks waits for Proxmox tasks, and limits how many run in parallel.
type Tasks struct {
	polls   *proxmox.TaskPolls
	timeout time.Duration
	clock   clock.WithTicker
	// slots limits how many tasks of a type run in parallel on a storage. Proxmox fails
	// a request that waits more than ten seconds for a storage lock and has no queue, so
	// waiting here is faster than contending there.
	slots *keyed.Semaphore[slotKey]
}

// NewTasks returns Tasks with the limits of the settings.
func NewTasks(settings Settings, c clock.WithTicker) *Tasks {
	return &Tasks{
		polls: proxmox.NewTaskPolls(), timeout: settings.TaskTimeout, clock: c,
		slots: keyed.NewSemaphore[slotKey](settings.CloneSlots),
	}
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
	if err == nil && task != "" {
		_, err = t.Wait(ctx, c, task)
	}
	if err != nil && !errors.Is(err, proxmox.ErrNotFound) {
		return fmt.Errorf("deleting volume %s on host %s: %w", volume, host, err)
	}
	return nil
}

// AcquireSlot waits until a task of a type may run on a storage. The returned function
// releases the slot.
func (t *Tasks) AcquireSlot(ctx context.Context, view inventory.View, kind, region, host, storage string) (release func(), err error) {
	return t.slots.Acquire(ctx, newSlotKey(view, kind, region, host, storage))
}

// StaleLockMessage explains how to delete a VM that a crashed task left locked: an API
// token can neither unlock nor destroy it.
func StaleLockMessage(id Identity, host, lock string) string {
	command := fmt.Sprintf("qm unlock %d && qm destroy %d", id.VMID, id.VMID)
	if lock == LockDestroyed {
		// Its configuration may not list the disks any more. Without a check by the user,
		// --destroy-unreferenced-disks could delete volumes of other owners.
		command = fmt.Sprintf("qm destroy %d --skiplock 1; list remaining disks with pvesm list STORAGE --vmid %d and delete those of this VM with pvesm free", id.VMID, id.VMID)
	}
	return fmt.Sprintf("VM %d on host %s is locked (%s) by a task that no longer runs, probably after a crash; if nothing uses the VM, run there as root: %s",
		id.VMID, host, lock, command)
}

// slotKey is what parallel tasks contend for: a storage on a Host, or a shared storage
// in the whole Cluster (Host empty), since its lock is cluster-wide. Destroys have
// separate slots: they take seconds and would wait for clones that take minutes.
type slotKey struct{ kind, region, host, storage string }

func newSlotKey(view inventory.View, kind, region, host, storage string) slotKey {
	key := slotKey{kind: kind, region: region, host: host, storage: storage}
	if state, ok := view.Storage(region, host, storage); ok && state.Shared {
		key.host = ""
	}
	return key
}
