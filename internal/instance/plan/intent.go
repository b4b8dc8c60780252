// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// newIntent completes a placement with all that the launch needs. It runs under the
// ledger's lock.
func (p *Planner) newIntent(
	view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, chosen placed, busy busyAddresses,
) (instance.Intent, error) {
	vmid, err := p.vmidOf(view, chosen.Zone.Region, claim)
	if err != nil {
		return instance.Intent{}, err
	}
	template, err := instance.PlacedTemplate(view, class, chosen.Placement)
	if err != nil {
		return instance.Intent{}, err
	}
	in := instance.Intent{
		Region: chosen.Zone.Region, Host: chosen.Zone.Host, VMID: vmid,
		TemplateHost: template.Host, TemplateID: template.VMID, ImageID: ownership.ImageID(template.VMID, *template.Config),
		InstanceType: chosen.InstanceType, CapacityType: p.types.CapacityType(chosen.InstanceType),
		Cores: chosen.Need.CPUs, MemoryMiB: int(chosen.Need.MemoryBytes >> 20), DiskBytes: chosen.Need.DiskBytes, Price: chosen.Price,
		ResourcePool: class.Spec.ResourcePool, Devices: chosen.Devices, Binding: instance.NewBinding(chosen.Binding),
		HA:      class.Spec.HighAvailability.DeepCopy(),
		Machine: chosen.machine.Name, Time: p.plannedAt(claim), ClassHash: class.Hash(),
	}
	if err := chooseStorages(&in, view, class, template, chosen.Placement); err != nil {
		return instance.Intent{}, err
	}
	in.Retained = instance.RetainedVolumes(in, p.deps.KubeCluster, view.Snapshots[in.Region])
	in.MACs = map[string]string{}
	snapshot := view.Snapshots[in.Region]
	taken := takenMACs(snapshot)
	for _, nic := range network.NICs(class, *template.Config) {
		in.MACs[nic.Slot] = vmconfig.DeriveMAC(snapshot.Options.MACPrefix, p.networkKey(claim, in), nic.Slot, taken)
	}
	in.Network, err = p.assignAddresses(view, claim, class, template, in, busy)
	if err != nil {
		return instance.Intent{}, err
	}
	return in, nil
}

// networkKey returns what MACs and addresses are derived from. It is the same for all VMs
// of a machine, so a DHCP server gives them the same address.
func (p *Planner) networkKey(claim *karpv1.NodeClaim, in instance.Intent) string {
	if in.Machine != "" {
		return p.deps.KubeCluster + "/" + in.Machine
	}
	return string(claim.UID)
}

// takenMACs returns the MAC addresses of all known guests, except for those of Hosts that were
// removed from the Cluster.
func takenMACs(snapshot *observed.Snapshot) map[string]bool {
	taken := map[string]bool{}
	for _, guest := range snapshot.Guests {
		if _, member := snapshot.Hosts[guest.Host]; !member || guest.Config == nil {
			continue
		}
		for _, nic := range guest.Config.Network().NICs() {
			taken[strings.ToUpper(nic.MAC)] = true
		}
	}
	return taken
}

// chooseStorages sets the storages of disks and boot drive, and whether the clone is
// linked: that requires the same storage, and a type that supports it.
func chooseStorages(in *instance.Intent, view inventory.View, class *v1alpha1.ProxmoxNodeClass, template observed.Guest, chosen placement.Placement) error {
	disk, ok := template.Config.Drives().Boot()
	if !ok {
		return fmt.Errorf("template %d on host %s has no boot disk", template.VMID, template.Host)
	}
	snapshot := view.Snapshots[in.Region]
	in.Storage = cmp.Or(class.Spec.BootDevice.Storage, disk.Storage)
	if boot := class.Spec.BootDevice; len(boot.Storages) > 0 || boot.StorageSelector != "" {
		in.Storage = chosen.Need.Storage
	}
	if err := chooseDiskStorages(in, class, chosen); err != nil {
		return err
	}
	in.FullClone = class.Spec.BootDevice.FullClone || in.Storage != disk.Storage || !canLink(snapshot, template)
	if !class.Spec.MetadataOptions.IsRendered() {
		return nil
	}
	in.Firmware = class.Spec.MetadataOptions.UsesFWCfg()
	storage, err := placement.ISOStorage(snapshot, in.Host, "spec.metadataOptions.storage", class.Spec.MetadataOptions.Storage)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", in.Region, in.Host, err)
	}
	in.ISOStorage = storage
	return nil
}

// chooseDiskStorages sets the disks besides the boot disk with their storages. The class may
// have changed since the request was made.
func chooseDiskStorages(in *instance.Intent, class *v1alpha1.ProxmoxNodeClass, chosen placement.Placement) error {
	if len(chosen.DiskStorages) != len(class.Spec.Disks) {
		return fmt.Errorf("storages were chosen for %d disks, but NodeClass %s has %d", len(chosen.DiskStorages), class.Name, len(class.Spec.Disks))
	}
	for n, d := range class.Spec.Disks {
		disk := *d.DeepCopy()
		disk.Storage, disk.Storages, disk.StorageSelector = chosen.DiskStorages[n], nil, ""
		in.Disks = append(in.Disks, disk)
	}
	return nil
}

// canLink reports whether all disks of a Template support linked clones. Thick LVM and
// raw iSCSI do not.
func canLink(snapshot *observed.Snapshot, template observed.Guest) bool {
	for _, drive := range template.Config.Drives().All() {
		if drive.IsCDROM || drive.Storage == "" {
			continue
		}
		switch snapshot.Storages[observed.StorageKey{Host: template.Host, Storage: drive.Storage}].Type {
		case "lvmthin", "zfspool", "rbd", "dir", "nfs", "cifs", "btrfs", "cephfs":
		default:
			return false
		}
	}
	return true
}
