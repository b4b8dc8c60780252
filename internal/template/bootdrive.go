// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

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
