// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// RemoveHost removes a host that is down from the Cluster. From then on, nothing that is on
// it is checked: it can be neither read nor deleted.
func (e *Env) RemoveHost(host string) error {
	if err := e.Sim.RemoveHost(host); err != nil {
		return err
	}
	e.Hosts = slices.DeleteFunc(slices.Clone(e.Hosts), func(name string) bool { return name == host })
	resources, err := e.resources()
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removed = append(e.removed, host)
	for _, row := range resources.Guests {
		if row.Host == host {
			e.lost[row.VMID] = true
			delete(e.foreignGuests, row.VMID)
		}
	}
	return nil
}

// isLost reports whether a guest is on a host that was removed.
func (e *Env) isLost(vmid int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lost[vmid]
}

// StartForeignGuests starts guests of other users that a host could not start when it was
// powered on, because their storage was inactive.
func (e *Env) StartForeignGuests() error {
	foreign := e.foreign()
	resources, err := e.resources()
	for _, row := range resources.Guests {
		if strings.HasPrefix(foreign[row.VMID], "running ") {
			err = errors.Join(err, retry(func() error { return e.start(row) }))
		}
	}
	return err
}

// start starts a guest unless it is running.
func (e *Env) start(row proxmox.GuestRow) error {
	ctx := context.Background()
	status, err := e.admin.VMStatus(ctx, row.Host, row.VMID)
	if err != nil || status.Running {
		return err
	}
	task, err := e.admin.StartVM(ctx, row.Host, row.VMID)
	if err != nil {
		return err
	}
	ended, err := proxmox.WaitTask(ctx, e.admin, task, proxmox.WaitOptions{Clock: e.Clock})
	if err != nil {
		return err
	}
	return ended.Err()
}

// deleteReportedDisks does what the controller asks an admin to do if its token may not
// delete disks: it deletes those that Proxmox itself could not delete.
func (e *Env) deleteReportedDisks() {
	if !e.Installation.PoolScoped {
		return
	}
	ctx := context.Background()
	for _, host := range e.Hosts {
		volumes, err := e.admin.Volumes(ctx, host, "local-lvm", "images")
		if err != nil {
			continue // Violations reports it
		}
		for _, volume := range volumes {
			if _, foreign := e.foreign()[volume.VMID]; foreign || e.hasGuest(volume.VMID) || !e.hasFailedToDelete(host, volume.ID) {
				continue
			}
			e.t.Logf("deleting volume %s on host %s as root: Proxmox could not, and the token may not", volume.ID, host)
			_, _ = e.admin.DeleteVolume(ctx, host, volume.ID) // Violations reports a volume that remains
		}
	}
}

func (e *Env) hasGuest(vmid int) bool {
	return slices.ContainsFunc(e.guests(), func(row proxmox.GuestRow) bool { return row.VMID == vmid })
}

// hasFailedToDelete reports whether a destroy with warnings or a failed clone on a host names
// a volume in its log.
func (e *Env) hasFailedToDelete(host, volume string) bool {
	ctx := context.Background()
	tasks, err := e.admin.RecentTasks(ctx, host, "", time.Unix(0, 0))
	if err != nil {
		return false
	}
	for _, task := range tasks {
		destroyed := task.UPID.Kind() == instance.TaskDestroy && task.HasWarnings()
		cloned := task.UPID.Kind() == instance.TaskClone && task.Ended() && !task.Succeeded()
		if !destroyed && !cloned {
			continue
		}
		if lines, err := e.admin.TaskLog(ctx, task.UPID); err == nil && strings.Contains(strings.Join(lines, "\n"), path.Base(strings.ReplaceAll(volume, ":", "/"))) {
			return true
		}
	}
	return false
}
