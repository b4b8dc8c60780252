// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"fmt"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// cachedClones is of how many failed clones the created disks are cached.
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
		disks, err := a.createdDisks(ctx, task.UPID)
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
	return a.blockedByDisks(a.deleteDisks(ctx, a.client, a.id, a.intent.Host, leaked))
}

// diskVolumes lists the volumes on the storage of the VM's disks, or on all that it could be.
func (a *attempt) diskVolumes(ctx context.Context) (out []proxmox.Volume, err error) {
	storages := []string{a.intent.Storage}
	if snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]; a.intent.Storage == "" && snapshot != nil {
		storages = slices.DeleteFunc(snapshot.StoragesOf(a.intent.Host), func(storage string) bool {
			row := snapshot.Storages[inventory.StorageKey{Host: a.intent.Host, Storage: storage}]
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
func (a *attempt) createdDisks(ctx context.Context, clone proxmox.UPID) (disks []string, err error) {
	if cached, ok := a.clones.Get(clone); ok {
		disks, _ = cached.([]string)
		return disks, nil
	}
	lines, err := a.client.TaskLog(ctx, clone)
	if err != nil {
		return nil, err
	}
	disks = createdIn(lines)
	a.clones.Add(clone, disks)
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
