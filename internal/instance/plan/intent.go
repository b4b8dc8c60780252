// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// newIntent completes a placement with all that the launch needs. It runs under the
// ledger's lock.
func (p *Planner) newIntent(
	view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, chosen placement.Placement, busy busyAddresses,
) (instance.Intent, error) {
	vmid, err := p.pickVMID(view, chosen.Zone.Region, claim)
	if err != nil {
		return instance.Intent{}, err
	}
	template, err := instance.PlacedTemplate(view, class, chosen)
	if err != nil {
		return instance.Intent{}, err
	}
	in := instance.Intent{
		Region: chosen.Zone.Region, Host: chosen.Zone.Host, VMID: vmid,
		TemplateHost: template.Host, TemplateID: template.VMID, ImageID: ownership.ImageID(template.VMID, *template.Config),
		InstanceType: chosen.InstanceType, CapacityType: karpv1.CapacityTypeOnDemand,
		Cores: chosen.Need.CPUs, MemoryMiB: int(chosen.Need.MemoryBytes >> 20), DiskBytes: chosen.Need.DiskBytes, Price: chosen.Price,
		ResourcePool: class.Spec.ResourcePool, Devices: chosen.Devices, Binding: instance.NewBinding(chosen.Binding),
		Time: p.deps.Clock.Now().UTC(),
	}
	if err := chooseStorages(&in, view, class, template); err != nil {
		return instance.Intent{}, err
	}
	in.MACs = map[string]string{}
	snapshot := view.Snapshots[in.Region]
	taken := takenMACs(snapshot)
	for _, nic := range template.Config.Network().NICs() {
		in.MACs[nic.Slot] = vmconfig.DeriveMAC(snapshot.Options.MACPrefix, string(claim.UID), nic.Slot, func(mac string) bool { return taken[mac] })
	}
	in.Network, err = p.assignAddresses(view, claim, class, template, in, busy)
	if err != nil {
		return instance.Intent{}, err
	}
	return in, nil
}

// takenMACs returns the MAC addresses of all known guests.
func takenMACs(snapshot *inventory.Snapshot) map[string]bool {
	taken := map[string]bool{}
	for _, guest := range snapshot.Guests {
		if guest.Config == nil {
			continue
		}
		for _, nic := range guest.Config.Network().NICs() {
			taken[strings.ToUpper(nic.MAC)] = true
		}
	}
	return taken
}

// chooseStorages sets the storages of disk and boot drive, and whether the clone is
// linked: that requires the same storage, and a type that supports it.
func chooseStorages(in *instance.Intent, view inventory.View, class *v1alpha1.ProxmoxNodeClass, template inventory.Guest) error {
	disk, ok := template.Config.Drives().Boot()
	if !ok {
		return fmt.Errorf("template %d on host %s has no boot disk", template.VMID, template.Host)
	}
	snapshot := view.Snapshots[in.Region]
	in.Storage = cmp.Or(class.Spec.BootDevice.Storage, disk.Storage)
	in.FullClone = class.Spec.BootDevice.FullClone || in.Storage != disk.Storage || !canLink(snapshot, template)
	if !class.Spec.MetadataOptions.IsRendered() {
		return nil
	}
	in.Firmware = class.Spec.MetadataOptions.UsesFWCfg()
	storage, err := ISOStorage(snapshot, in.Host, class.Spec.MetadataOptions.Storage)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", in.Region, in.Host, err)
	}
	in.ISOStorage = storage
	return nil
}

// canLink reports whether all disks of a Template support linked clones. Thick LVM and
// raw iSCSI do not.
func canLink(snapshot *inventory.Snapshot, template inventory.Guest) bool {
	for _, drive := range template.Config.Drives().All() {
		if drive.IsCDROM || drive.Storage == "" {
			continue
		}
		switch snapshot.Storages[inventory.StorageKey{Host: template.Host, Storage: drive.Storage}].Type {
		case "lvmthin", "zfspool", "rbd", "dir", "nfs", "cifs", "btrfs", "cephfs":
		default:
			return false
		}
	}
	return true
}

// ISOStorage returns the storage of a Host for boot drives: the requested one, or the
// first by name with iso content, local storages before shared ones.
func ISOStorage(snapshot *inventory.Snapshot, host, requested string) (string, error) {
	var candidates []proxmox.StorageRow
	for key, row := range snapshot.Storages {
		if key.Host == host && slices.Contains(row.Content, "iso") && row.Available && (requested == "" || requested == key.Storage) {
			candidates = append(candidates, row)
		}
	}
	if len(candidates) == 0 {
		return "", errors.New(missingISOStorage(snapshot, host, requested))
	}
	slices.SortFunc(candidates, func(a, b proxmox.StorageRow) int {
		if a.Shared != b.Shared {
			if a.Shared {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return candidates[0].Name, nil
}

// fileStorages are the types of storage that can have iso content; the others have
// only disks.
var fileStorages = []string{"dir", "nfs", "cifs", "cephfs", "btrfs", "glusterfs"}

// missingISOStorage explains why a Host has no storage for boot drives, and how to get
// one. The command contains all content types: Proxmox replaces the list.
func missingISOStorage(snapshot *inventory.Snapshot, host, requested string) string {
	const hint = "run: pvesm set %s --content %s"
	if requested != "" {
		row, ok := snapshot.Storages[inventory.StorageKey{Host: host, Storage: requested}]
		content := strings.Join(row.Content, ",")
		switch {
		case !ok:
			return fmt.Sprintf("spec.metadataOptions.storage %q is not on this host, which has %s", requested, strings.Join(snapshot.StoragesOf(host), ", "))
		case slices.Contains(row.Content, "iso"):
			return fmt.Sprintf("spec.metadataOptions.storage %q is not available", requested)
		case !slices.Contains(fileStorages, row.Type):
			return fmt.Sprintf("spec.metadataOptions.storage %q is of type %s, which takes no iso content; name one that holds files", requested, row.Type)
		}
		return fmt.Sprintf("spec.metadataOptions.storage %q has the content types %s, but not iso; "+hint, requested, content, requested, "iso,"+content)
	}
	var found proxmox.StorageRow
	for key, row := range snapshot.Storages {
		if key.Host == host && slices.Contains(fileStorages, row.Type) && (found.Name == "" || row.Name < found.Name) {
			found = row
		}
	}
	const none = "no storage takes iso content, which the boot drive needs; "
	if found.Name == "" {
		return none + "run: pvesm add dir iso --path /var/lib/iso --content iso"
	}
	return none + fmt.Sprintf(hint, found.Name, strings.Join(append([]string{"iso"}, found.Content...), ","))
}
