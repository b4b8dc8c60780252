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
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// diskDeletionRetries is how often the deletion of a leaked disk is tried.
	diskDeletionRetries = 5
	// maxClockSkew is how far the clocks of a Host and of Kubernetes may differ.
	maxClockSkew = 10 * time.Minute
)

// deleteLeakedDisks deletes the disks that a destroy of the VM left, because their storage
// was locked for too long or was inactive. No configuration refers to them any more. Only
// disks that the task's warnings name are deleted: another VM may have the VMID by now,
// but not that disk. It returns a BlockedError if a disk remains, unless the token may not
// delete disks.
func (d *Deleter) deleteLeakedDisks(ctx context.Context, c proxmox.Client, id instance.Identity, destroy proxmox.TaskStatus) error {
	if !destroy.HasWarnings() {
		return nil
	}
	host := destroy.UPID.Host()
	lines, err := c.TaskLog(ctx, destroy.UPID)
	if err != nil {
		return blocked(err, unreachable(host))
	}
	log.FromContext(ctx).Info("destroyed VM with warnings", "vmid", id.VMID, "host", host, "region", id.Region, "task", destroy.UPID, "log", strings.Join(lines, " | "))
	if err := d.deleteDisks(ctx, c, id, host, proxmox.LeakedDisks(lines, id.VMID)); err != nil {
		return &instance.BlockedError{Reason: v1alpha1.EventDiskNotDeleted, Message: fmt.Sprintf(
			"VM %d on host %s is destroyed, but disks of it could not be deleted: %v", id.VMID, host, err)}
	}
	return nil
}

// deleteDisks deletes leaked disks, unless a guest has the VMID again: a disk of that name
// may be its own. It logs errors, and returns those that a retry can resolve: not those of
// a token that may not delete disks.
func (d *Deleter) deleteDisks(ctx context.Context, c proxmox.Client, id instance.Identity, host string, volumes []string) error {
	if len(volumes) == 0 {
		return nil
	}
	guest, listed := d.deps.Inventory.View().Guest(id.Region, id.VMID)
	switch _, err := c.VMConfig(ctx, host, id.VMID); {
	case err == nil || instance.IsNotVisible(err) || listed && guest.Kind != proxmox.KindQEMU:
		log.FromContext(ctx).Info("keeping disks because another guest has the VMID", "vmid", id.VMID, "host", host, "region", id.Region, "volumes", volumes)
		return nil
	case !errors.Is(err, proxmox.ErrNotFound):
		return err
	}
	var failures []error
	for _, volume := range volumes {
		log := log.FromContext(ctx).WithValues("vmid", id.VMID, "host", host, "region", id.Region, "volume", volume)
		err := d.deleteDisk(ctx, c, host, volume)
		if err == nil {
			log.Info("deleted leaked disk")
			continue
		}
		log.Error(err, "deleting leaked disk failed, to delete it by hand run the command on the host as root", "command", "pvesm free "+volume)
		if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); !forbidden {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// checkStorages returns a BlockedError if a storage of the VM's disks is inactive as of the
// last poll: Proxmox would destroy the VM and leave its disks, which tokens with few
// privileges cannot delete.
func (d *Deleter) checkStorages(id instance.Identity, host string, cfg proxmox.VMConfig) error {
	view := d.deps.Inventory.View()
	for _, drive := range cfg.Drives().Volumes() {
		if storage, known := view.Storage(id.Region, host, drive.Storage); known && !storage.Available && proxmox.IsDiskOf(drive.VolumeID, id.VMID) {
			return &instance.BlockedError{Reason: v1alpha1.EventDiskNotDeleted, Message: fmt.Sprintf(
				"disk %s of VM %d cannot be deleted, because storage %s is inactive on host %s; the VM will be deleted when it is active, check with: pvesm status",
				drive.VolumeID, id.VMID, drive.Storage, host)}
		}
	}
	return nil
}

// deleteDisk deletes a disk and retries if its storage is locked.
func (d *Deleter) deleteDisk(ctx context.Context, c proxmox.Client, host, volume string) (err error) {
	for range diskDeletionRetries {
		if err = d.deps.Tasks.DeleteVolume(ctx, c, host, volume); !proxmox.IsTransient(err) {
			return err
		}
		select {
		case <-d.deps.Clock.After(time.Second):
		case <-ctx.Done():
		}
	}
	return err
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
	for name, host := range a.deps.Inventory.View().Snapshots[a.id.Region].Hosts {
		if host.Online {
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
