// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// cachedClones is of how many clones the created disks are cached.
const cachedClones = 1000

// createdDisk matches the name of a disk in the lines that a clone logs when it creates one:
//
//	Logical volume "vm-100-disk-0" created.
//	Formatting '/var/lib/vz/images/100/vm-100-disk-0.qcow2', fmt=qcow2 ...
//	clone base-9000-disk-0: base-9000-disk-0 snapname __base__ to vm-100-disk-0
//	allocated target volume 'local-zfs:vm-100-disk-0'
var createdDisk = regexp.MustCompile(`^(?:\s*Logical volume "|Formatting '(?:\S*/)?|clone .* to |allocated target volume '\S+[:/])(vm-\d+-[\w.-]+)`)

// deleteClonedDisks deletes the disks of failed clones of an unfinished launch, among our
// tasks on the Template's Host. Proxmox deletes them when a clone fails, but leaves those
// on a storage that is inactive at that moment. Only disks that our clones created are
// deleted: their logs name them.
func (a *attempt) deleteClonedDisks(ctx context.Context, host string, tasks []proxmox.TaskStatus) error {
	created := map[string]bool{}
	for _, task := range tasks {
		if task.UPID.Kind() != instance.TaskClone || a.intent.TemplateID != 0 && task.ID != strconv.Itoa(a.intent.TemplateID) || !task.Ended() || task.Succeeded() {
			continue
		}
		disks, err := a.createdDisks(ctx, a.client, task.UPID)
		if err != nil {
			return blocked(err, unreachable(host))
		}
		for _, disk := range disks {
			if proxmox.IsDiskOf(disk, a.id.VMID) {
				created[disk] = true
			}
		}
	}
	if len(created) == 0 {
		return nil
	}
	var leaked []string
	volumes, err := a.diskVolumes(ctx)
	if err != nil {
		return a.blockedByDisks(err)
	}
	for _, volume := range volumes {
		if _, name, _ := strings.Cut(volume.ID, ":"); volume.VMID == a.id.VMID && created[path.Base(name)] {
			leaked = append(leaked, volume.ID)
		}
	}
	a.reportHiddenDisks(ctx)
	return a.blockedByDisks(remaining(a.deps.Tasks.DeleteDisks(ctx, a.client, a.intent.Host, a.id.VMID, leaked)))
}

// diskVolumes lists the volumes on the storage of the VM's disks, or on all that it could be.
func (a *attempt) diskVolumes(ctx context.Context) (out []proxmox.Volume, err error) {
	storages := []string{a.intent.Storage}
	if snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]; a.intent.Storage == "" && snapshot != nil {
		storages = slices.DeleteFunc(snapshot.StoragesOf(a.intent.Host), func(storage string) bool {
			row := snapshot.Storages[observed.StorageKey{Host: a.intent.Host, Storage: storage}]
			return !row.Available || !slices.Contains(row.Content, "images")
		})
	}
	for _, storage := range storages {
		volumes, err := a.client.Volumes(ctx, a.intent.Host, storage, "images")
		if err != nil {
			return nil, err
		}
		out = append(out, volumes...)
	}
	return out, nil
}

func (a *attempt) blockedByDisks(err error) error {
	if err == nil {
		return nil
	}
	return &instance.BlockedError{Reason: v1alpha1.EventDiskNotDeleted, Message: fmt.Sprintf(
		"the clone of VM %d on host %s failed and may have left disks, which could not be deleted: %v", a.id.VMID, a.intent.Host, err)}
}

// reportHiddenDisks logs how to find disks of a failed clone if the token may not list them.
func (a *attempt) reportHiddenDisks(ctx context.Context) {
	snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]
	if snapshot == nil || snapshot.Facts == nil || snapshot.Facts.Permissions.Has("/storage/"+a.intent.Storage, "Datastore.Allocate") {
		return
	}
	log.FromContext(ctx).Info("a clone failed and may have left disks, which the token may not list; to list them run the command on the host as root",
		"vmid", a.id.VMID, "host", a.intent.Host, "region", a.id.Region, "command", fmt.Sprintf("pvesm list %s --vmid %d", a.intent.Storage, a.id.VMID))
}

// createdDisks returns the names of the disks that a clone created. They are cached: the
// Claims of a burst can fail together, and the deletion of each one reads all logs.
func (d *Deleter) createdDisks(ctx context.Context, client proxmox.Client, clone proxmox.UPID) (disks []string, err error) {
	if cached, ok := d.clones.Get(clone); ok {
		disks, _ = cached.([]string)
		return disks, nil
	}
	lines, err := client.TaskLog(ctx, clone)
	if err != nil {
		return nil, err
	}
	disks = createdIn(lines)
	d.clones.Add(clone, disks)
	return disks, nil
}

// createdIn returns the names of the disks that a clone created, according to its log.
func createdIn(log []string) []string {
	var disks []string
	for _, line := range log {
		if found := createdDisk.FindStringSubmatch(line); found != nil {
			disks = append(disks, found[1])
		}
	}
	return disks
}

// FindClones returns which VMIDs of a region a task of our user cloned a Template to, and no task of it
// destroyed since. It reads the tasks of all online Hosts, and returns none if the call budget does not
// allow that now.
func (d *Deleter) FindClones(ctx context.Context, region string, vmids []int) (map[int]bool, error) {
	client, err := d.deps.Clients.Get(region)
	snapshot := d.deps.Inventory.View().Snapshots[region]
	if err != nil || snapshot == nil || len(vmids) == 0 || !d.deps.Inventory.TryAcquire(region, poll.ReadClones) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.deps.Settings.OperationTimeout)
	defer cancel()
	found := cloneTimes{vmids: vmids, cloned: map[int]time.Time{}, destroyed: map[int]time.Time{}}
	for name := range snapshot.Hosts {
		if !snapshot.IsOnline(name) {
			continue
		}
		tasks, err := recentTasks(ctx, client, name, time.Unix(0, 0))
		if err != nil {
			return nil, err
		}
		for _, task := range tasks {
			created, err := d.createdByClone(ctx, client, task)
			if err != nil {
				return nil, err
			}
			found.add(task, created)
		}
	}
	out := map[int]bool{}
	for vmid, at := range found.cloned {
		out[vmid] = at.After(found.destroyed[vmid])
	}
	return out, nil
}

// cloneTimes are when VMIDs were last cloned to and destroyed.
type cloneTimes struct {
	vmids             []int
	cloned, destroyed map[int]time.Time
}

// add adds a task, and the names of the disks that it created.
func (t *cloneTimes) add(task proxmox.TaskStatus, created []string) {
	for _, vmid := range t.vmids {
		if slices.ContainsFunc(created, func(disk string) bool { return proxmox.IsDiskOf(disk, vmid) }) && task.Started.After(t.cloned[vmid]) {
			t.cloned[vmid] = task.Started
		}
		if task.UPID.Kind() == instance.TaskDestroy && task.ID == strconv.Itoa(vmid) && task.Started.After(t.destroyed[vmid]) {
			t.destroyed[vmid] = task.Started
		}
	}
}

// createdByClone returns the names of the disks that a task created if it is a clone that ended.
func (d *Deleter) createdByClone(ctx context.Context, client proxmox.Client, task proxmox.TaskStatus) ([]string, error) {
	if task.UPID.Kind() != instance.TaskClone || !task.Ended() {
		return nil, nil
	}
	return d.createdDisks(ctx, client, task.UPID)
}
