// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// VMConfig is a VM's configuration: every option as text, whatever JSON type
// this release of Proxmox gives it (memory was a number before 8.1).
type VMConfig struct {
	Options map[string]string
	// Digest of the configuration as read, for ConfigChange.Digest.
	Digest string
}

// UnmarshalJSON takes numbers, texts and booleans alike.
func (c *VMConfig) UnmarshalJSON(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var raw map[string]any
	if err := decoder.Decode(&raw); err != nil {
		return fmt.Errorf("decoding a VM config, %w", err)
	}
	c.Options = make(map[string]string, len(raw))
	c.Digest = ""
	for key, value := range raw {
		text, ok := scalar(value)
		switch {
		case !ok: // "meta" data of a later release: not ours to read
		case key == "digest":
			c.Digest = text
		default:
			c.Options[key] = text
		}
	}
	return nil
}

// scalar writes a JSON value as Proxmox would write it in a form.
func scalar(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		if v {
			return "1", true
		}
		return "0", true
	}
	return "", false
}

// Name of the VM.
func (c VMConfig) Name() string { return c.Options["name"] }

// Description is the VM's notes. Proxmox trims blanks at its end.
func (c VMConfig) Description() string { return c.Options["description"] }

// Lock is the config lock ("clone", "backup"...), empty where there is none.
func (c VMConfig) Lock() string { return c.Options["lock"] }

// IsTemplate tells whether VMs are cloned from it.
func (c VMConfig) IsTemplate() bool { return isTrue(c.Options["template"]) }

// Protected tells whether the admin forbade its removal.
func (c VMConfig) Protected() bool { return isTrue(c.Options["protection"]) }

// Cores per socket; Proxmox's default is one.
func (c VMConfig) Cores() int { return max(1, number(c.Options["cores"])) }

// Sockets of the VM; Proxmox's default is one.
func (c VMConfig) Sockets() int { return max(1, number(c.Options["sockets"])) }

// MemoryMiB is the VM's maximum memory; Proxmox's default is 512. Since 8.1
// memory is a property string ("current=2048").
func (c VMConfig) MemoryMiB() int {
	p := ParseProperties(c.Options["memory"])
	text, ok := p.bare()
	if !ok {
		text = p.Value("current")
	}
	if mib := number(text); mib > 0 {
		return mib
	}
	return 512
}

// Tags of the VM.
func (c VMConfig) Tags() []string { return splitTags(c.Options["tags"]) }

// SMBIOS is the identity that the guest's firmware tables show.
func (c VMConfig) SMBIOS() SMBIOS { return ParseSMBIOS(c.Options["smbios1"]) }

var (
	nicSlot   = regexp.MustCompile(`^net(\d{1,2})$`)
	driveSlot = regexp.MustCompile(`^(ide|sata|scsi|virtio)(\d{1,2})$`)
)

// NICs in the order of their slots.
func (c VMConfig) NICs() []NIC {
	var nics []NIC
	for _, slot := range c.slots(nicSlot) {
		nics = append(nics, ParseNIC(slot, c.Options[slot]))
	}
	return nics
}

// Drives lists disks and CD drives in the order of their slots. EFI variables,
// TPM state and unused volumes are none.
func (c VMConfig) Drives() []Drive {
	var drives []Drive
	for _, slot := range c.slots(driveSlot) {
		drives = append(drives, ParseDrive(slot, c.Options[slot]))
	}
	return drives
}

// Drive reads one slot.
func (c VMConfig) Drive(slot string) (Drive, bool) {
	value, ok := c.Options[slot]
	if !ok || !driveSlot.MatchString(slot) {
		return Drive{}, false
	}
	return ParseDrive(slot, value), true
}

// slots lists the options that match, by bus and then by number.
func (c VMConfig) slots(pattern *regexp.Regexp) []string {
	var slots []string
	for option := range c.Options {
		if pattern.MatchString(option) {
			slots = append(slots, option)
		}
	}
	slices.SortFunc(slots, func(a, b string) int {
		busA, numberA := splitSlot(a)
		busB, numberB := splitSlot(b)
		if busA != busB {
			return strings.Compare(busA, busB)
		}
		return numberA - numberB
	})
	return slots
}

func splitSlot(slot string) (bus string, index int) {
	bus = strings.TrimRight(slot, "0123456789")
	index, _ = strconv.Atoi(slot[len(bus):])
	return bus, index
}

// BootOrder lists the slots that the VM tries in turn. A legacy value ("c",
// "cdn" with bootdisk=) names no slots but the boot disk's.
func (c VMConfig) BootOrder() []string {
	order := ParseProperties(c.Options["boot"]).Value("order")
	if order != "" {
		return strings.FieldsFunc(order, func(r rune) bool { return r == ';' })
	}
	if disk := c.Options["bootdisk"]; disk != "" {
		return []string{disk}
	}
	return nil
}

// BootDisk is the first disk of the boot order, else the first there is of
// virtio0, scsi0, sata0 and ide0.
func (c VMConfig) BootDisk() (Drive, bool) {
	candidates := append(c.BootOrder(), "virtio0", "scsi0", "sata0", "ide0")
	for _, slot := range candidates {
		if drive, ok := c.Drive(slot); ok && !drive.IsCDROM && !drive.IsCloudInit {
			return drive, true
		}
	}
	return Drive{}, false
}

// splitTags takes a tag list apart; Proxmox writes ";" but accepts "," and blanks.
func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}
