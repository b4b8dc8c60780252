// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// singleController is the SCSI controller that allows an I/O thread for each disk.
const singleController = "virtio-scsi-single"

// lastDiskSlots are the last slots for disks by bus. The boot drive can have scsi30.
var lastDiskSlots = map[v1alpha1.DiskBus]int{v1alpha1.DiskBusSCSI: 29, v1alpha1.DiskBusVirtIO: 15, v1alpha1.DiskBusSATA: 5}

// setBootDisk writes the options of the boot disk.
func (b *builder) setBootDisk(disk proxmox.Drive) error {
	properties, err := b.diskProperties(disk.Slot, disk.Properties, "spec.bootDevice", b.want.BootDisk)
	if err != nil {
		return err
	}
	disk.Properties = properties
	b.set[disk.Slot] = disk.Encode()
	return nil
}

// addDisks creates the disks besides the boot disk in the first free slots of their bus:
// Proxmox allocates a volume for storage:GiB. Existing volumes are attached. Slot 0 is not used: without a boot order,
// the guest could boot from it.
func (b *builder) addDisks(boot proxmox.Drive) error {
	for _, disk := range b.want.Disks {
		field := fmt.Sprintf("spec.disks[name=%s]", disk.Name)
		slot, err := b.freeDiskSlot(disk.BusOrDefault())
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		properties := proxmox.Properties{{Key: "serial", Value: disk.Name}}
		if wwn := disk.WWN(); wwn != "" {
			properties = properties.With("wwn", wwn)
		}
		if properties, err = b.diskProperties(slot, properties, field, disk.DiskOptions); err != nil {
			return err
		}
		created := cmp.Or(disk.Storage, boot.Storage) + ":" + strconv.FormatInt(disk.GiB(), 10)
		drive := proxmox.Drive{Slot: slot, VolumeID: cmp.Or(b.want.Volumes[disk.Name], created), Properties: properties}
		b.set[slot] = drive.Encode()
	}
	return nil
}

// freeDiskSlot returns the first slot of a bus that neither the Template nor this change
// uses. If the Template has no SCSI controller, it sets one that every Linux guest has a
// driver for.
func (b *builder) freeDiskSlot(bus v1alpha1.DiskBus) (string, error) {
	last := lastDiskSlots[bus]
	for n := 1; n <= last; n++ {
		slot := string(bus) + strconv.Itoa(n)
		if b.option(slot) != "" {
			continue
		}
		if bus == v1alpha1.DiskBusSCSI && b.option("scsihw") == "" && !b.hasSCSIDrive() {
			b.set["scsihw"] = singleController
		}
		return slot, nil
	}
	return "", fmt.Errorf("the template has no free slot among %s1 to %s%d", bus, bus, last)
}

func (b *builder) hasSCSIDrive() bool {
	for _, drive := range b.clone.Drives().All() {
		if strings.HasPrefix(drive.Slot, string(v1alpha1.DiskBusSCSI)) {
			return true
		}
	}
	return false
}

// option returns the value that an option has after the change; empty if it is not set.
func (b *builder) option(name string) string {
	return cmp.Or(b.set[name], b.clone.Options[name])
}

// diskProperties returns the properties of a disk with the options of the class. The disk
// of a node is disposable: by default it is neither backed up nor replicated.
func (b *builder) diskProperties(slot string, p proxmox.Properties, field string, o v1alpha1.DiskOptions) (proxmox.Properties, error) {
	bus := v1alpha1.DiskBus(strings.TrimRight(slot, "0123456789"))
	if err := b.checkBus(slot, bus, field, o); err != nil {
		return nil, err
	}
	if bus != v1alpha1.DiskBusVirtIO {
		p = withBool(p, "ssd", o.SSD)
	}
	if bus == v1alpha1.DiskBusVirtIO || bus == v1alpha1.DiskBusSCSI {
		p = withBool(p, "iothread", o.IOThread)
	}
	if o.Discard != nil {
		p = p.With("discard", map[bool]string{true: "on", false: "ignore"}[*o.Discard])
	}
	if o.Cache != "" {
		p = p.With("cache", o.Cache)
	}
	if o.AIO != "" {
		p = p.With("aio", o.AIO)
	}
	p = withLimit(withLimit(p, "rd", o.ReadLimit), "wr", o.WriteLimit)
	return p.With("backup", proxmox.EncodeBool(isTrue(o.Backup))).With("replicate", proxmox.EncodeBool(isTrue(o.Replicate))), nil
}

// checkBus returns an error if the bus of a disk does not have an option that is enabled.
func (b *builder) checkBus(slot string, bus v1alpha1.DiskBus, field string, o v1alpha1.DiskOptions) error {
	if isTrue(o.SSD) && bus == v1alpha1.DiskBusVirtIO {
		return fmt.Errorf("%s.ssd is true, but the disk %s is on the bus virtio, which does not have this option; remove it, or use a template with its disk on the bus scsi", field, slot)
	}
	allowsThread := bus == v1alpha1.DiskBusVirtIO || (bus == v1alpha1.DiskBusSCSI && b.option("scsihw") == singleController)
	if isTrue(o.IOThread) && !allowsThread {
		return fmt.Errorf("%s.ioThread is true, but the disk %s is on the bus %s with the SCSI controller %q; it needs the bus virtio, or the bus scsi and the controller %s: qm set TEMPLATE --scsihw %s",
			field, slot, bus, b.option("scsihw"), singleController, singleController)
	}
	return nil
}

// Total limits of a drive, for reads and writes together. Proxmox converts bps to mbps.
var (
	totalIOPS = []string{"iops", "iops_max", "iops_max_length"}
	totalMBps = []string{"mbps", "mbps_max", "bps", "bps_max_length"}
)

// withLimit sets the limits of a direction: rd or wr. They replace the total limits of the
// template, because QEMU does not start with both: "bps/iops/max total values and
// read/write values cannot be used at the same time".
func withLimit(p proxmox.Properties, direction string, limit *v1alpha1.DiskLimit) proxmox.Properties {
	if limit == nil {
		return p
	}
	for _, l := range []struct {
		key    string
		value  int32
		totals []string
	}{
		{"iops_" + direction, limit.IOPS, totalIOPS},
		{"iops_" + direction + "_max", limit.IOPSBurst, totalIOPS},
		{"mbps_" + direction, limit.MBps, totalMBps},
		{"mbps_" + direction + "_max", limit.MBpsBurst, totalMBps},
	} {
		if l.value != 0 {
			p = p.Without(l.totals...).With(l.key, strconv.Itoa(int(l.value)))
		}
	}
	return p
}

func isTrue(b *bool) bool { return b != nil && *b }
