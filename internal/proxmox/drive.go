// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"regexp"
	"strconv"
	"strings"
)

// Drive is a disk or CD drive of a VM.
type Drive struct {
	Slot        string // scsi0
	VolumeID    string // local-lvm:vm-100-disk-0; "none" or "cdrom" for an empty drive
	Storage     string // local-lvm; empty if VolumeID is not a volume
	IsCDROM     bool
	IsCloudInit bool
	SizeBytes   int64 // as configured; 0 if the config has no size
	// Properties are the drive's other options, in order: size, discard, ssd...
	Properties Properties
}

var cloudInitVolume = regexp.MustCompile(`(^|[:/])vm-\d+-cloudinit(\.[a-z0-9]+)?$|:cloudinit$`)

// ParseDrive parses the value of a drive option.
func ParseDrive(slot, value string) Drive {
	p := ParseProperties(value)
	volume := p.defaultValue("file")
	d := Drive{
		Slot:        slot,
		VolumeID:    volume,
		IsCDROM:     p.Value("media") == "cdrom" || volume == "none" || volume == "cdrom",
		IsCloudInit: cloudInitVolume.MatchString(volume),
		SizeBytes:   parseSize(p.Value("size")),
		Properties:  p.Without("file").withoutBare(),
	}
	if storage, _, ok := strings.Cut(volume, ":"); ok {
		d.Storage = storage
	}
	return d
}

// Encode returns the value of the drive option. Proxmox requires the volume in
// each write and ignores the size: use ResizeDisk to grow a disk.
func (d Drive) Encode() string {
	return append(Properties{{Value: d.VolumeID, Bare: true}}, d.Properties...).Encode()
}

var sizeUnits = map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}

// parseSize parses a size such as "3584M". It returns 0 if the text is not a size.
func parseSize(s string) int64 {
	if s == "" {
		return 0
	}
	unit, digits := int64(1), s
	if u, ok := sizeUnits[s[len(s)-1]]; ok {
		unit, digits = u, s[:len(s)-1]
	}
	n, err := strconv.ParseFloat(digits, 64)
	bytes := n * float64(unit)
	// The negated comparison would accept NaN.
	if inside := bytes >= 0 && bytes <= 1<<62; err != nil || !inside {
		return 0
	}
	return int64(bytes)
}

// Drives are the disks and CD drives of a VM.
type Drives struct{ options map[string]string }

var driveSlot = regexp.MustCompile(`^(ide|sata|scsi|virtio)\d{1,2}$`)

// All returns the drives sorted by slot, without EFI variables, TPM state and unused volumes.
func (d Drives) All() []Drive { return d.in(driveSlot) }

var volumeSlot = regexp.MustCompile(`^(ide|sata|scsi|virtio|efidisk|tpmstate|unused)\d+$`)

// Volumes returns all options that refer to a volume, sorted by slot: also EFI variables, TPM
// state and unused volumes.
func (d Drives) Volumes() []Drive { return d.in(volumeSlot) }

func (d Drives) in(pattern *regexp.Regexp) []Drive {
	var drives []Drive
	for _, slot := range slots(d.options, pattern) {
		drives = append(drives, ParseDrive(slot, d.options[slot]))
	}
	return drives
}

// Find returns the drive in a slot. It returns false if the slot is empty.
func (d Drives) Find(slot string) (Drive, bool) {
	value, ok := d.options[slot]
	if !ok || !driveSlot.MatchString(slot) {
		return Drive{}, false
	}
	return ParseDrive(slot, value), true
}

// BootOrder returns the slots that the VM boots from, in order. For a legacy value
// ("c", "cdn" with bootdisk=) it returns the slot of the boot disk only.
func (d Drives) BootOrder() []string {
	order := ParseProperties(d.options["boot"]).Value("order")
	if order != "" {
		return strings.FieldsFunc(order, func(r rune) bool { return r == ';' })
	}
	if disk := d.options["bootdisk"]; disk != "" {
		return []string{disk}
	}
	return nil
}

// Boot returns the first disk of the boot order, or else the first existing one of
// virtio0, scsi0, sata0 and ide0. It returns false if there is none.
func (d Drives) Boot() (Drive, bool) {
	for _, slot := range append(d.BootOrder(), "virtio0", "scsi0", "sata0", "ide0") {
		if drive, ok := d.Find(slot); ok && !drive.IsCDROM && !drive.IsCloudInit {
			return drive, true
		}
	}
	return Drive{}, false
}

// CloudInit returns the drive that Proxmox fills with cloud-init's files. It
// returns false if there is none.
func (d Drives) CloudInit() (Drive, bool) {
	for _, drive := range d.All() {
		if drive.IsCloudInit {
			return drive, true
		}
	}
	return Drive{}, false
}
