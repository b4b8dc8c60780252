// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// builderSlot is the slot of a builder VM's boot drive. The cloud-init drive of the
// Template is added to it afterwards: a VM must not have both.
const builderSlot = vmconfig.SCSIBootDriveSlot

// bootDriveName returns the file name of a builder VM's boot drive. Its VM is created
// before it is uploaded, so one without the VM is an orphan.
func bootDriveName(kubeCluster string, vmid int) string {
	return fmt.Sprintf("karpenter-builder-%s-%d.iso", clusterKey(kubeCluster), vmid)
}

var bootDrivePattern = regexp.MustCompile(`:iso/karpenter-builder-([0-9a-f]{8})-([0-9]+)\.iso$`)

// bootDriveSlot returns the slot of a builder VM's boot drive.
func bootDriveSlot(existing Existing) (string, bool) {
	for _, drive := range existing.Config.Drives().All() {
		if drive.VolumeID == existing.Mark.Builder.BootDrive {
			return drive.Slot, true
		}
	}
	return "", false
}

// attachBootDrive renders the boot data of a builder VM, uploads it, and adds the drive.
// A repeated upload replaces the file.
func (r *hostReconciler) attachBootDrive(ctx context.Context, location Location, existing Existing) error {
	r.tracker.setStep(r.HostKey, fmt.Sprintf("uploading the boot data of builder VM %d", existing.VMID))
	image, hash, err := r.renderBootData(ctx, r.desired.Spec.Prepare, r.builderData(existing))
	if err != nil {
		return err
	}
	if hash != r.desired.BootDataHash {
		// The status reports the new content soon, which supersedes this builder.
		return errStillRunning
	}
	storage, file, _ := strings.Cut(existing.Mark.Builder.BootDrive, ":iso/")
	task, err := r.client.UploadISO(ctx, r.Host, storage, file, image)
	if err == nil {
		err = r.wait(ctx, r.client, task)
	}
	if err != nil {
		return explain(err, location, fmt.Sprintf("uploading the boot data of builder VM %d to storage %s", existing.VMID, storage), storage)
	}
	if _, attached := bootDriveSlot(existing); attached {
		return nil
	}
	change := proxmox.ConfigChange{Set: map[string]string{
		builderSlot: existing.Mark.Builder.BootDrive + ",media=cdrom", "boot": templateBootOrder + ";" + builderSlot,
	}}
	err = r.writeBuilder(ctx, existing, change, func(*ownership.Builder) {})
	return explain(err, location, fmt.Sprintf("attaching the boot data to builder VM %d", existing.VMID), "")
}

// builderData returns the data that the boot data templates of a builder VM can refer to.
func (r *hostReconciler) builderData(existing Existing) bootdata.Data {
	prepare := r.desired.Spec.Prepare
	data := bootdata.Data{
		Metadata: bootdata.Metadata{
			Hostname: r.desired.Name, InstanceID: strconv.Itoa(existing.VMID), InstanceUUID: existing.Config.SMBIOS().UUID,
			Region: r.Region, Zone: r.Host, Tags: r.desired.Spec.Tags,
		},
		Resources: bootdata.Resources{CPU: int64(prepare.CPUs()), Memory: int64(prepare.MemoryMiB()) << 20},
	}
	for _, nic := range existing.Config.Network().NICs() {
		data.Network.Interfaces = append(data.Network.Interfaces, bootdata.Interface{Name: "eth" + strings.TrimPrefix(nic.Slot, "net"), MacAddr: nic.MAC})
	}
	for _, nic := range r.desired.Spec.Network {
		data.Network.NameServers = append(data.Network.NameServers, nic.DNSServers...)
	}
	return data
}

// deleteVolume deletes a volume. It succeeds if the volume does not exist: another Host may have deleted it
// from a shared storage.
func (r *hostReconciler) deleteVolume(ctx context.Context, volume string) error {
	return waitError(ctx, r.tasks.DeleteVolume(ctx, r.client, r.Host, volume))
}

// deleteUnusedBootDrives deletes the boot drives of builder VMs that no longer exist, for
// example because they were destroyed by hand. It returns after which time to check those
// again whose VM may be in creation.
func (r *hostReconciler) deleteUnusedBootDrives(ctx context.Context, obs observation) (time.Duration, error) {
	usage, err := r.usage(ctx)
	if err != nil {
		return 0, err
	}
	if !r.desired.Deleted && !slices.ContainsFunc(usage.Desired, func(d Desired) bool { return d.Spec.Prepare != nil }) {
		return 0, nil
	}
	found, err := r.listBootDrives(ctx, obs)
	if len(found) == 0 {
		return 0, err
	}
	// The VM of a boot drive was created before it: if it exists, the new view shows it.
	if err := r.inventory.Refresh(ctx, r.Region); err != nil {
		return 0, explain(err, obs.location, "polling the cluster", "")
	}
	var after time.Duration
	errs := []error{err}
	for _, volume := range found {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		left, err := r.deleteUnusedBootDrive(ctx, volume)
		errs = append(errs, explain(err, obs.location, fmt.Sprintf("deleting boot drive %s", volume), ""))
		after = soonest(after, left)
	}
	return after, joinErrors(errs...)
}

// listBootDrives returns the boot drives of our builder VMs on the storages of the Host, and
// an error if some of these cannot be listed.
func (r *hostReconciler) listBootDrives(ctx context.Context, obs observation) (found []string, err error) {
	var errs []error
	for _, storage := range r.storagesWith(obs, "iso") {
		volumes, err := r.client.Volumes(ctx, r.Host, storage, "iso")
		prepare := r.desired.Spec.Prepare
		if _, hidden := errors.AsType[*proxmox.ForbiddenError](err); hidden && (prepare == nil || prepare.Storage != "" && prepare.Storage != storage) {
			continue // without access we cannot have uploaded one there
		}
		errs = append(errs, explain(err, obs.location, fmt.Sprintf("listing the boot drives on storage %s", storage), storage))
		for _, volume := range volumes {
			if match := bootDrivePattern.FindStringSubmatch(volume.ID); match != nil && match[1] == clusterKey(r.kubeCluster) {
				found = append(found, volume.ID)
			}
		}
	}
	return found, joinErrors(errs...)
}

func (r *hostReconciler) deleteUnusedBootDrive(ctx context.Context, volume string) (time.Duration, error) {
	vmid, err := strconv.Atoi(bootDrivePattern.FindStringSubmatch(volume)[2])
	if err != nil {
		return 0, nil //nolint:nilerr // a number that is no VMID is not ours
	}
	view := r.inventory.View()
	if guest, exists := view.Guest(r.Region, vmid); exists {
		if !view.Snapshots[r.Region].Hosts[guest.Host].Online {
			return 0, nil // its configuration cannot be read
		}
		config, err := r.client.VMConfig(ctx, guest.Host, vmid)
		if err != nil && !errors.Is(err, proxmox.ErrNotFound) {
			return 0, err
		}
		if slices.ContainsFunc(config.Drives().All(), func(d proxmox.Drive) bool { return d.VolumeID == volume }) || isBuilderOf(config, volume) {
			return 0, nil
		}
	} else if view.IsVMIDTaken(r.Region, vmid) {
		return builderInterval, nil // it is being created
	}
	if err := r.deleteVolume(ctx, volume); err != nil {
		return 0, err
	}
	log.FromContext(ctx).Info("deleted unused boot drive", "volume", volume, "host", r.Host)
	return 0, nil
}
