// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// maxClockSkew is how far the clocks of a Host and of Kubernetes may differ.
const maxClockSkew = 10 * time.Minute

// deleteLeakedDisks deletes the disks that a destroy of the VM left. It returns a BlockedError if one
// remains.
func (d *Deleter) deleteLeakedDisks(ctx context.Context, c proxmox.Client, id instance.Identity, destroy proxmox.TaskStatus) error {
	host := destroy.UPID.Host()
	leaks, err := d.deps.Tasks.DeleteLeakedDisks(ctx, c, id.VMID, destroy)
	if err != nil {
		return blocked(err, unreachable(host))
	}
	if err := remaining(leaks); err != nil {
		return &instance.BlockedError{Reason: v1alpha1.EventDiskNotDeleted, Message: fmt.Sprintf(
			"VM %d on host %s is destroyed, but disks of it could not be deleted: %v", id.VMID, host, err)}
	}
	return nil
}

// remaining returns the errors that a retry can resolve: not those of a token that may not delete disks,
// and not those of disks that may be of another guest.
func remaining(leaks []*vm.LeakError) error {
	var errs []error
	for _, leak := range leaks {
		if !instance.IsNotVisible(leak) && !errors.Is(leak, vm.ErrVMIDInUse) {
			errs = append(errs, leak)
		}
	}
	return errors.Join(errs...)
}

// deleteEarlierLeaks deletes the disks that an earlier destroy of the Claim's VM or a
// failed clone left. The controller may not have seen their end, and keeps no record of
// it: Proxmox's list of tasks does.
func (a *attempt) deleteEarlierLeaks(ctx context.Context, host string) error {
	if a.claim.DeletionTimestamp == nil || a.deps.Launches.Get(a.id.ClaimUID).IsFresh() {
		return nil
	}
	if _, taken := a.deps.Inventory.View().Guest(a.id.Region, a.id.VMID); taken {
		return nil // a disk of that name may be its own
	}
	launching := !a.deps.IsLaunched(a.claim)
	since := a.claim.DeletionTimestamp.Time
	if launching {
		since = a.intent.Time
	}
	tasks := map[string][]proxmox.TaskStatus{}
	last := cmp.Or(host, a.deps.LastHost(a.claim))
	for _, host := range a.vmHosts(last) {
		found, err := a.deleteDestroyedDisks(ctx, a.client, a.id, host, since)
		if _, unreachable := errors.AsType[*instance.BlockedError](err); unreachable && host != last {
			log.FromContext(ctx).Info("not searching for disks that a destroy left, because the host does not respond", "host", host, "vmid", a.id.VMID)
			continue
		}
		if err != nil {
			return err
		}
		tasks[host] = found
	}
	if !launching {
		return nil
	}
	for _, host := range a.cloneHosts() {
		found, read := tasks[host]
		switch {
		case read:
		case a.isCloneHostDown(host):
			log.FromContext(ctx).Info("not searching for disks of a failed clone, because the host of the template is down", "host", host, "vmid", a.id.VMID)
			continue
		default:
			var err error
			if found, err = recentTasks(ctx, a.client, host, since); err != nil {
				return err
			}
		}
		if err := a.deleteClonedDisks(ctx, host, found); err != nil {
			return err
		}
	}
	return nil
}

// vmHosts returns the Hosts on which an earlier destroy of the VM could have run: the last one, or all that
// are online if this process neither planned nor saw the VM.
func (a *attempt) vmHosts(last string) []string {
	_, planned := a.deps.Launches.Plan(a.id.ClaimUID)
	if planned || a.deps.Launches.Host(a.id.ClaimUID) != "" {
		return []string{last}
	}
	var online []string
	snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]
	for name := range snapshot.Hosts {
		if snapshot.IsOnline(name) {
			online = append(online, name)
		}
	}
	return online
}

// deleteDestroyedDisks deletes the disks that our destroys of a VM since a time left. It
// returns all our tasks on the Host since then.
func (d *Deleter) deleteDestroyedDisks(ctx context.Context, c proxmox.Client, id instance.Identity, host string, since time.Time) ([]proxmox.TaskStatus, error) {
	tasks, err := recentTasks(ctx, c, host, since)
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		if task.UPID.Kind() == instance.TaskDestroy && task.ID == strconv.Itoa(id.VMID) {
			if err := d.deleteLeakedDisks(ctx, c, id, task); err != nil {
				return nil, err
			}
		}
	}
	return tasks, nil
}

// recentTasks returns our tasks on a Host since a time. What the task of another user left
// is not ours, even if the VMID is.
func recentTasks(ctx context.Context, c proxmox.Client, host string, since time.Time) ([]proxmox.TaskStatus, error) {
	tasks, err := c.RecentTasks(ctx, host, c.User(), since.Add(-maxClockSkew))
	if err != nil {
		return nil, blocked(err, unreachable(host))
	}
	return slices.DeleteFunc(tasks, func(task proxmox.TaskStatus) bool { return task.User != c.User() }), nil
}
