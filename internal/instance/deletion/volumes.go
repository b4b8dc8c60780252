// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// checkVolumes returns a BlockedError if Proxmox would delete a volume with the VM that is
// not a disk of it, such as one of the Proxmox CSI driver: Proxmox deletes each volume
// in the configuration that has the VMID in its name. It keeps all others.
//
// To detach such a volume does not help: Proxmox keeps it in the configuration as
// unusedN, and deletes it if that entry is deleted.
func checkVolumes(ctx context.Context, id instance.Identity, host string, cfg proxmox.VMConfig) error {
	if err := checkMovedDisks(id, host, cfg); err != nil {
		return err
	}
	var kept []string
	for _, drive := range cfg.Drives().Volumes() {
		slot, volume := drive.Slot, drive.VolumeID
		owner, named := proxmox.VolumeOwner(volume)
		switch {
		case !named || proxmox.IsDiskOf(volume, id.VMID):
		case owner != strconv.Itoa(id.VMID):
			kept = append(kept, volume)
		case strings.HasPrefix(slot, "unused"):
			return &instance.BlockedError{Reason: v1alpha1.EventVolumeAttached, Message: fmt.Sprintf(
				"volume %s is detached from VM %d on host %s (%s), but Proxmox would still delete it with the VM; to keep it, run there as root: sed -i '/^%s:/d' /etc/pve/qemu-server/%d.conf; then exclude the VMID with --proxmox-excluded-vmids",
				volume, id.VMID, host, slot, slot, id.VMID)}
		default:
			return &instance.BlockedError{Reason: v1alpha1.EventVolumeAttached, Message: fmt.Sprintf(
				"volume %s is attached to VM %d on host %s (%s), and Proxmox would delete it with the VM, whose VMID is in its name; the deletion waits until it is detached",
				volume, id.VMID, host, slot)}
		}
	}
	if len(kept) > 0 {
		log.FromContext(ctx).Info("keeping attached volumes of other owners", "vmid", id.VMID, "host", host, "volumes", kept)
	}
	return nil
}

// checkMovedDisks returns a BlockedError if a disk that is kept for the machine was moved in
// Proxmox: it then has the VMID in its name, and would be deleted with the VM.
func checkMovedDisks(id instance.Identity, host string, cfg proxmox.VMConfig) error {
	mark, _ := ownership.Read(cfg.Description())
	for _, drive := range cfg.Drives().All() {
		name := drive.Properties.Value("serial")
		if proxmox.IsDiskOf(drive.VolumeID, id.VMID) && slices.Contains(mark.Retained, name) {
			return &instance.BlockedError{Reason: v1alpha1.EventVolumeAttached, Message: fmt.Sprintf(
				"disk %s of machine %s was moved to volume %s of VM %d on host %s (%s), and Proxmox would delete it with the VM; the deletion waits: copy its data to a volume of another VM, then remove the disk from this one",
				name, mark.Machine, drive.VolumeID, id.VMID, host, drive.Slot)}
		}
	}
	return nil
}
