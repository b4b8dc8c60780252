// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// confirm reports whether the VM does not exist and no clone will still create it.
func (a *attempt) confirm(ctx context.Context, found result, host string) (bool, error) {
	switch found {
	case vmDestroyed:
		return true, nil
	case vmAbsent:
		// Without a Host, the VM was missing in a list that was just read.
		if host != "" {
			if err := a.refresh(ctx); err != nil {
				return false, err
			}
		}
		return a.confirmAbsent(ctx)
	case vmCloning:
		if ended, err := a.ensureCloneEnded(ctx); err != nil || !ended {
			return false, err
		}
		return false, a.checkStaleLock(ctx, host, instance.LockClone)
	case vmDestroying:
		if ended, err := a.hasDestroyEnded(ctx, host); err != nil || !ended {
			return false, err
		}
		return false, a.checkStaleLock(ctx, host, instance.LockDestroyed)
	}
	return false, nil
}

// confirmAbsent reports whether the VM is not on any other Host either, and no clone is
// in progress.
func (a *attempt) confirmAbsent(ctx context.Context) (bool, error) {
	if !a.deps.IsLaunched(a.claim) {
		// Checked first: a clone that ends in between has created the VM.
		if ended, err := a.ensureCloneEnded(ctx); err != nil || !ended {
			return false, err
		}
	}
	if guest, ok := a.deps.Inventory.View().Guest(a.id.Region, a.id.VMID); ok && guest.Kind != proxmox.KindQEMU {
		return true, nil // a container has the VMID, so ours was deleted
	} else if ok {
		cfg, err := a.client.VMConfig(ctx, guest.Host, a.id.VMID)
		if errors.Is(err, proxmox.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, blocked(err, unreachable(guest.Host))
		}
		if a.mayBeOurs(cfg) {
			return false, nil
		}
		// Another guest has the VMID, so ours was deleted.
	} else if snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]; snapshot != nil {
		err := instance.ConfirmAbsent(ctx, a.client, snapshot, a.id.VMID)
		if instance.IsNotVisible(err) {
			return a.confirmInvisible(ctx)
		}
		if !errors.Is(err, proxmox.ErrNotFound) {
			return false, blocked(err, fmt.Sprintf("checking whether VM %d is deleted", a.id.VMID))
		}
	}
	return true, nil
}

// mayBeOurs reports whether a VM that was found on another Host must be examined there.
func (a *attempt) mayBeOurs(cfg proxmox.VMConfig) bool {
	if cfg.Lock() != "" {
		return true
	}
	owns, _ := a.id.Owns(cfg)
	return !cfg.IsTemplate() && (owns || a.id.HasLostMark(cfg) || a.id.HasNewerMark(cfg))
}

// confirmInvisible handles a VM that the token may not read. A token with privileges on a
// resource pool can read its members, and a clone becomes one at its end. No clone runs
// anymore, so a VM that cannot be read was not created by us, unless an administrator
// moved it, which is unlikely for a VM that never ran.
func (a *attempt) confirmInvisible(ctx context.Context) (bool, error) {
	if !a.isInResourcePool(ctx) || a.deps.IsLaunched(a.claim) {
		return false, &instance.BlockedError{Reason: v1alpha1.EventVMNotVisible, Message: instance.NotVisibleMessage(a.id.Region, a.id.VMID, "deleted")}
	}
	log.FromContext(ctx).Info("skipping VM that the token may not read", "vmid", a.id.VMID, "region", a.id.Region,
		"hint", "it has another owner; if it is locked (clone) after a crash, delete it as root")
	return true, nil
}

// isInResourcePool reports whether the VM was to become a member of a resource pool.
func (a *attempt) isInResourcePool(ctx context.Context) bool {
	if a.intent.Known {
		return a.intent.ResourcePool != ""
	}
	class := &v1alpha1.ProxmoxNodeClass{}
	err := a.deps.Kube.Get(ctx, client.ObjectKey{Name: a.claim.Spec.NodeClassRef.Name}, class)
	return err == nil && class.Spec.ResourcePool != ""
}

// ensureCloneEnded cancels the clone of this Claim and reports whether no clone of an
// unfinished launch can still create the VM.
func (a *attempt) ensureCloneEnded(ctx context.Context) (bool, error) {
	if a.deps.Launches.Get(string(a.claim.UID)).HasNoClone() {
		return true, nil
	}
	own := a.deps.Launches.CloneTask(string(a.claim.UID))
	for _, host := range a.cloneHosts() {
		if a.isCloneHostDown(host) {
			continue
		}
		tasks, err := a.client.RunningTasks(ctx, host, instance.TaskClone)
		if err != nil {
			return false, blocked(err, unreachable(host))
		}
		for _, task := range tasks {
			switch {
			case task.UPID == own:
				// A canceled clone may or may not be rolled back: the next call checks.
				return false, instance.IgnoreNotFound(a.client.CancelTask(ctx, task.UPID))
			case own == "" && (a.intent.TemplateID == 0 || task.ID == fmt.Sprint(a.intent.TemplateID)) && !a.deps.Launches.IsCloneOfOther(string(a.claim.UID), task.UPID):
				// It could be ours, of a controller that was restarted.
				return false, a.cancelOwnClone(ctx, task.UPID)
			}
		}
	}
	return true, nil
}

// cancelOwnClone cancels a clone whose log names a disk of the Claim's VM. As long as the log names
// none, such as of a clone that waits for its storage, the clone may be that of another.
func (a *attempt) cancelOwnClone(ctx context.Context, clone proxmox.UPID) error {
	lines, err := a.client.TaskLog(ctx, clone)
	if err != nil {
		return blocked(instance.IgnoreNotFound(err), unreachable(clone.Host()))
	}
	if !slices.ContainsFunc(createdIn(lines), func(disk string) bool { return proxmox.IsDiskOf(disk, a.id.VMID) }) {
		return nil
	}
	return instance.IgnoreNotFound(a.client.CancelTask(ctx, clone))
}

// isCloneHostDown reports whether the Host of the Template is offline or was removed, while the
// VM is not listed and would be on another Host. Then no clone runs there: its VM is listed as
// soon as it begins.
func (a *attempt) isCloneHostDown(host string) bool {
	view := a.deps.Inventory.View()
	_, listed := view.Guest(a.id.Region, a.id.VMID)
	snapshot := view.Snapshots[a.id.Region]
	return !listed && snapshot != nil && !snapshot.IsOnline(host) && host != a.intent.Host
}

// cloneHosts returns the Hosts on which the clone could run: that of the Template, or all
// if it is not known.
func (a *attempt) cloneHosts() []string {
	if a.intent.TemplateHost != "" {
		return []string{a.intent.TemplateHost}
	}
	snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]
	if snapshot == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(snapshot.Hosts))
}

// hasDestroyEnded reports whether no destroy of the VM runs on its Host.
func (a *attempt) hasDestroyEnded(ctx context.Context, host string) (bool, error) {
	tasks, err := a.client.RunningTasks(ctx, host, instance.TaskDestroy)
	if err != nil {
		return false, blocked(err, unreachable(host))
	}
	return !slices.ContainsFunc(tasks, func(task proxmox.TaskStatus) bool { return task.ID == strconv.Itoa(a.id.VMID) }), nil
}

// checkStaleLock returns a BlockedError if the VM still has the lock of a clone or
// destroy that no longer runs: only root can remove it.
func (a *attempt) checkStaleLock(ctx context.Context, host, lock string) error {
	cfg, err := a.client.VMConfig(ctx, host, a.id.VMID)
	if err != nil {
		return blocked(instance.IgnoreNotFound(err), unreachable(host))
	}
	if cfg.Lock() != lock {
		return nil
	}
	return &instance.BlockedError{Reason: v1alpha1.EventVMLocked, Message: vm.StaleLockMessage(a.id.VMID, host, lock)}
}
