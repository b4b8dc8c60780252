// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// diskDeletionRetries is how often the deletion of a leaked disk is tried.
	diskDeletionRetries = 5
	// maxClockSkew is how far the clocks of a Host and of Kubernetes may differ.
	maxClockSkew = 10 * time.Minute
)

// quotedVolume matches a volume in the log of a task: Could not remove disk
// 'local-lvm:vm-100-disk-0', check manually: ...
var quotedVolume = regexp.MustCompile(`'([^'\s]+:[^'\s]+)'`)

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
	log := log.FromContext(ctx).WithValues("vmid", id.VMID, "host", host, "region", id.Region)
	log.Info("destroyed VM with warnings", "task", destroy.UPID, "log", strings.Join(lines, " | "))
	var failures []error
	for _, found := range quotedVolume.FindAllStringSubmatch(strings.Join(lines, "\n"), -1) {
		volume := found[1]
		if !isDiskOf(volume, id.VMID) {
			continue
		}
		if err := d.deleteDisk(ctx, c, host, volume); err != nil {
			log.Error(err, "deleting leaked disk failed, to delete it by hand run the command on the host as root", "volume", volume, "command", "pvesm free "+volume)
			if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); !forbidden {
				failures = append(failures, err) // a retry can succeed
			}
		}
	}
	if len(failures) == 0 {
		return nil
	}
	return &instance.BlockedError{Reason: instance.BlockedDiskRemaining, Message: fmt.Sprintf(
		"VM %d on host %s is destroyed, but disks of it could not be deleted: %v", id.VMID, host, errors.Join(failures...))}
}

// checkStorages returns a BlockedError if a storage of the VM's disks is inactive as of the
// last poll: Proxmox would destroy the VM and leave its disks, which tokens with few
// privileges cannot delete.
func (d *Deleter) checkStorages(id instance.Identity, host string, cfg proxmox.VMConfig) error {
	view := d.deps.Inventory.View()
	for _, drive := range cfg.Drives().All() {
		if storage, known := view.Storage(id.Region, host, drive.Storage); known && !storage.Available && isDiskOf(drive.VolumeID, id.VMID) {
			return &instance.BlockedError{Reason: instance.BlockedDiskRemaining, Message: fmt.Sprintf(
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

// deleteEarlierLeaks deletes the disks that an earlier destroy of the Claim's VM left. The
// controller may not have seen its end, and keeps no record of it: Proxmox's list of tasks
// does.
func (a *attempt) deleteEarlierLeaks(ctx context.Context) error {
	host := instance.RecordedHost(a.claim)
	if a.claim.DeletionTimestamp == nil || host == "" || a.deps.Launches.CloneTask(a.claim) == "" {
		return nil
	}
	if _, taken := a.deps.Inventory.View().Guest(a.id.Region, a.id.VMID); taken {
		return nil // a disk of that name may be its own
	}
	tasks, err := a.client.RecentTasks(ctx, host, "", a.claim.DeletionTimestamp.Add(-maxClockSkew))
	if err != nil {
		return blocked(err, unreachable(host))
	}
	for _, task := range tasks {
		if task.UPID.Kind() == instance.TaskDestroy && task.ID == strconv.Itoa(a.id.VMID) {
			if err := a.deleteLeakedDisks(ctx, a.client, a.id, task); err != nil {
				return err
			}
		}
	}
	return nil
}
