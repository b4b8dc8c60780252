// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// singleController is the value of scsihw that gives each drive its own controller.
const singleController = "virtio-scsi-single"

// slotNumber splits a slot such as "scsi0" into bus and number.
func slotNumber(slot string) (bus string, index int) {
	bus = strings.TrimRight(slot, "0123456789")
	index, _ = strconv.Atoi(slot[len(bus):]) // only digits
	return bus, index
}

// addDrives adds disks and CD-ROM drives at the controllers where Proxmox puts them.
func (h *hardware) addDrives(a *arguments) {
	h.addControllers(a)
	for _, slot := range sortedSlots(h.options) {
		d, ok := qm.ParseDrive(slot, h.options[slot])
		if !ok {
			continue
		}
		if d.IsCDROM() {
			drive := "if=none,id=drive-" + slot + ",media=cdrom,readonly=on"
			if medium := h.media[slot]; medium != "" {
				drive += ",format=raw,file=" + escape(medium)
			}
			a.add("-drive", drive)
		} else {
			file := h.disks[slot]
			if file == "" {
				continue
			}
			// The disks of a temporary directory need no protection from a crash of the host.
			a.add("-drive", "if=none,id=drive-"+slot+",format=qcow2,cache=unsafe,discard=unmap,file="+escape(file))
		}
		if device := h.driveDevice(a, d); device != "" {
			a.device("%s,drive=drive-%s,id=%s%s%s", device, slot, slot, driveOptions(d), a.bootIndex(slot))
		}
	}
}

// sortedSlots returns the slots that the guest sees, in the order of bus and number.
func sortedSlots(options map[string]string) []string {
	var out []string
	for _, bus := range []string{"ide", "sata", "scsi", "virtio"} {
		for i := range 31 {
			if slot := bus + strconv.Itoa(i); options[slot] != "" {
				out = append(out, slot)
			}
		}
	}
	return out
}

func driveOptions(d qm.Drive) string {
	var out string
	if v := d.Opts["serial"]; v != "" {
		out += ",serial=" + escape(v)
	}
	if v := d.Opts["wwn"]; v != "" {
		out += ",wwn=" + escape(v)
	}
	if bus, _ := slotNumber(d.Key); d.Opts["ssd"] == "1" && bus != "virtio" && !d.IsCDROM() {
		out += ",rotation_rate=1"
	}
	return out
}

var scsiControllers = map[string]string{
	"": "lsi", "lsi": "lsi", "lsi53c810": "lsi53c810", "megasas": "megasas", "pvscsi": "pvscsi", "virtio-scsi-pci": "virtio-scsi-pci",
}

// addControllers adds the SCSI and SATA controllers of the drives.
func (h *hardware) addControllers(a *arguments) {
	var added []string
	for _, slot := range sortedSlots(h.options) {
		bus, index := slotNumber(slot)
		controller := ""
		switch {
		case bus == "sata":
			controller = "ahci,id=ahci0,multifunction=on,bus=pci.0,addr=0x7"
		case bus == "scsi" && h.options["scsihw"] == singleController:
			controller = fmt.Sprintf("virtio-scsi-pci,id=virtioscsi%d,bus=pci.3,addr=0x%x", index, index+1)
		case bus == "scsi":
			n := index / h.drivesPerController()
			controller = fmt.Sprintf("%s,id=scsihw%d,bus=pci.0,addr=0x%x", scsiControllers[h.options["scsihw"]], n, 5+n)
		}
		if controller != "" && !slices.Contains(added, controller) {
			added = append(added, controller)
			a.device("%s", controller)
		}
	}
}

func (h *hardware) isLSI() bool {
	return strings.HasPrefix(scsiControllers[h.options["scsihw"]], "lsi")
}

func (h *hardware) drivesPerController() int {
	if h.isLSI() {
		return 7
	}
	return 256
}

// driveDevice returns the device of a drive without its common options, or "" if the slot is unknown.
func (h *hardware) driveDevice(a *arguments, d qm.Drive) string {
	bus, index := slotNumber(d.Key)
	kind := "hd"
	if d.IsCDROM() {
		kind = "cd"
	}
	switch bus {
	case "ide":
		controller, unit := index/2, index%2
		if a.q35 { // AHCI ports have one unit; Proxmox moves odd slots up
			controller, unit = controller+2*unit, 0
		}
		return fmt.Sprintf("ide-%s,bus=ide.%d,unit=%d", kind, controller, unit)
	case "sata":
		return fmt.Sprintf("ide-%s,bus=ahci0.%d", kind, index)
	case "scsi":
		switch {
		case h.options["scsihw"] == singleController:
			return fmt.Sprintf("scsi-%s,bus=virtioscsi%d.0,channel=0,scsi-id=0,lun=%d", kind, index, index)
		case h.isLSI():
			return fmt.Sprintf("scsi-%s,bus=scsihw%d.0,scsi-id=%d", kind, index/7, index%7)
		}
		return fmt.Sprintf("scsi-%s,bus=scsihw0.0,channel=0,scsi-id=0,lun=%d", kind, index)
	case "virtio":
		if index < 6 {
			return fmt.Sprintf("virtio-blk-pci,bus=pci.0,addr=0x%x", 0xa+index)
		}
		return fmt.Sprintf("virtio-blk-pci,bus=pci.2,addr=0x%x", index-5)
	}
	return ""
}
