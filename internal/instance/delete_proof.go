// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// hostIsGone tells whether the Host that holds the VM was removed from its Cluster
// for good: the Cluster answers and does not know the Host, whatever it still lists
// of its guests, and that has been so for long enough.
func (r *removal) hostIsGone(ctx context.Context, host string, err error) bool {
	var blocked *BlockedError
	if !errors.As(err, &blocked) || blocked.Reason != BlockedHostUnreachable || r.claim.DeletionTimestamp.IsZero() ||
		r.Clock.Since(r.claim.DeletionTimestamp.Time) < r.Settings.HostRemovedAfter {
		return false
	}
	if r.Inventory.Refresh(ctx, r.id.Region) != nil {
		return false
	}
	_, member := r.Inventory.View().Host(r.id.Region, host)
	return !member
}

// locate says where the VM is: where it was last seen, else where the Cluster lists
// it now. Where it was meant to be says nothing: it may have been migrated since.
func (r *removal) locate(ctx context.Context) (string, bool, error) {
	if guest, ok := r.Inventory.View().Guest(r.id.Region, r.id.VMID); ok {
		return guest.Host, true, nil
	}
	if err := r.Inventory.Refresh(ctx, r.id.Region); err != nil {
		return "", false, blockedBy(err, fmt.Sprintf("region %s does not answer", r.id.Region))
	}
	guest, ok := r.Inventory.View().Guest(r.id.Region, r.id.VMID)
	return guest.Host, ok, nil
}

// provenGone answers whether nothing of the VM is left or on its way: it may
// have moved to another Host, or its clone may still be at work.
func (r *removal) provenGone(ctx context.Context) (bool, error) {
	if guest, ok := r.Inventory.View().Guest(r.id.Region, r.id.VMID); ok {
		cfg, err := r.client.VMConfig(ctx, guest.Host, r.id.VMID)
		if errors.Is(err, proxmox.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, blockedBy(err, fmt.Sprintf("host %s does not answer", guest.Host))
		}
		if ours, _ := r.id.Owns(cfg); ours || r.id.HasNewerMark(cfg) || cfg.Lock() != "" {
			return false, nil
		}
		// Somebody else's VM has the VMID now, so ours is gone.
	} else if snapshot := r.Inventory.View().Snapshots[r.id.Region]; snapshot != nil {
		err := provenAbsent(ctx, r.client, snapshot, r.id.VMID)
		if isHidden(err) {
			return r.hiddenSettled(ctx, snapshot)
		}
		if !errors.Is(err, proxmox.ErrNotFound) {
			return false, blockedBy(err, fmt.Sprintf("whether VM %d is gone cannot be told", r.id.VMID))
		}
	}
	if (!r.hasIntent && !r.unreadable) || r.claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" {
		return true, nil
	}
	return r.cloneSettled(ctx)
}

// hiddenSettled judges a VM that the token may not see. A token with rights on a pool
// sees what is in it, and a clone becomes a member at its very end. So once no clone
// is at work, what is still hidden was not made by us; unless an admin has moved it
// since, which nobody does with a VM that never ran.
func (r *removal) hiddenSettled(ctx context.Context, snapshot *inventory.Snapshot) (bool, error) {
	if !r.hasIntent || r.intent.Pool == "" || r.claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" {
		return false, &BlockedError{Reason: BlockedNotVisible, Message: fmt.Sprintf(
			"the token may not see VM %d of region %s, so that it cannot be removed: give it VM.Audit there, put the VM back into its pool, or remove it by hand", r.id.VMID, r.id.Region)}
	}
	if ended, err := r.cloneSettled(ctx); err != nil || !ended {
		return false, err
	}
	if !isHidden(provenAbsent(ctx, r.client, snapshot, r.id.VMID)) {
		return false, nil // it was ours after all, or is gone: the next call tells
	}
	log.FromContext(ctx).Info("left a VM alone that the token may not see: it is somebody else's, or, if it is locked (clone), what a crash left of ours, which root may remove",
		"vmid", r.id.VMID, "region", r.id.Region)
	return true, nil
}

// isHidden tells whether a VM is there that the token may not see.
func isHidden(err error) bool {
	_, hidden := errors.AsType[*proxmox.ForbiddenError](err)
	return hidden
}

// cloneSettled makes sure that no clone of an unfinished launch will still make
// the VM after we looked.
func (r *removal) cloneSettled(ctx context.Context) (bool, error) {
	if r.memory.noneOpen(string(r.claim.UID)) {
		return true, nil
	}
	if !r.hasIntent && !r.unreadable {
		return true, nil
	}
	mine := r.memory.task(r.claim)
	for _, host := range r.cloners() {
		tasks, err := r.client.RunningTasks(ctx, host, kindClone)
		if err != nil {
			return false, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
		}
		for _, task := range tasks {
			switch {
			case task.UPID == mine:
				// Cancelling may or may not roll back: the next call looks again.
				return false, ignoreNotFound(r.client.CancelTask(ctx, task.UPID))
			case mine == "" && (r.unreadable || task.ID == fmt.Sprint(r.intent.TemplateID)):
				// It could be ours, from a controller that died before it noted the task.
				return false, nil
			}
		}
	}
	return true, nil
}

// cloners are the Hosts on which the clone could be at work: the Template's, or any
// where the intent cannot be read that names it.
func (r *removal) cloners() []string {
	if !r.unreadable {
		return []string{r.intent.TemplateHost}
	}
	snapshot := r.Inventory.View().Snapshots[r.id.Region]
	if snapshot == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(snapshot.Hosts))
}

// deadLock reports a lock that nobody works under any more: a clone or a destroy
// died, with its Host or by somebody's hand, and only root can take it away. Nil
// when the lock is gone after all.
func (r *removal) deadLock(ctx context.Context, host, lock string) error {
	cfg, err := r.client.VMConfig(ctx, host, r.id.VMID)
	if err != nil {
		return blockedBy(ignoreNotFound(err), fmt.Sprintf("host %s does not answer", host))
	}
	if cfg.Lock() != lock {
		return nil
	}
	return &BlockedError{Reason: BlockedLocked, Message: leftover(r.id, host, lock)}
}

// destroySettled tells whether no removal of the VM is at work on its Host.
func (r *removal) destroySettled(ctx context.Context, host string) (bool, error) {
	tasks, err := r.client.RunningTasks(ctx, host, kindDestroy)
	if err != nil {
		return false, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
	}
	return !slices.ContainsFunc(tasks, func(task proxmox.TaskStatus) bool { return task.ID == strconv.Itoa(r.id.VMID) }), nil
}
