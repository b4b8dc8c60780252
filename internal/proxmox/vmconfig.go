// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// VMConfig is a VM's configuration: every option as text, regardless of its JSON
// type in this release of Proxmox VE (memory was a number before 8.1).
type VMConfig struct {
	Options map[string]string
	// Digest of the configuration as read, for ConfigChange.Digest.
	Digest string
}

// MarshalJSON encodes what UnmarshalJSON decodes.
func (c VMConfig) MarshalJSON() ([]byte, error) {
	all := maps.Clone(c.Options)
	if c.Digest != "" {
		if all == nil {
			all = map[string]string{}
		}
		all["digest"] = c.Digest
	}
	return json.Marshal(all)
}

// UnmarshalJSON decodes options given as number, text or boolean and ignores
// options of other types, such as metadata of a later release.
func (c *VMConfig) UnmarshalJSON(data []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var raw map[string]any
	if err := decoder.Decode(&raw); err != nil {
		return fmt.Errorf("decoding a VM config: %w", err)
	}
	c.Options = make(map[string]string, len(raw))
	c.Digest = ""
	for key, value := range raw {
		text, ok := formatScalar(value)
		switch {
		case !ok:
		case key == "digest":
			c.Digest = text
		default:
			c.Options[key] = text
		}
	}
	return nil
}

// formatScalar returns a JSON value as Proxmox writes it in a form.
func formatScalar(value any) (string, bool) {
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

// Name returns the VM's name.
func (c VMConfig) Name() string { return c.Options["name"] }

// Description returns the VM's notes. Proxmox trims trailing blanks.
func (c VMConfig) Description() string { return c.Options["description"] }

// Lock returns the config lock ("clone", "backup"...), or "" if there is none.
func (c VMConfig) Lock() string { return c.Options["lock"] }

// IsTemplate reports whether the VM is a template.
func (c VMConfig) IsTemplate() bool { return isTrue(c.Options["template"]) }

// StartsOnBoot reports whether the VM starts with its Host.
func (c VMConfig) StartsOnBoot() bool { return isTrue(c.Options["onboot"]) }

// Protected reports whether the VM's protection flag forbids its deletion.
func (c VMConfig) Protected() bool { return isTrue(c.Options["protection"]) }

// Tags returns the VM's tags.
func (c VMConfig) Tags() []string { return splitTags(c.Options["tags"]) }

// SMBIOS returns the identity in the guest's firmware tables.
func (c VMConfig) SMBIOS() SMBIOS { return ParseSMBIOS(c.Options["smbios1"]) }

// Compute returns the VM's CPU and memory options.
func (c VMConfig) Compute() Compute { return Compute{c.Options} }

// Drives returns the VM's disks and CD drives.
func (c VMConfig) Drives() Drives { return Drives{c.Options} }

// Network returns the VM's network options.
func (c VMConfig) Network() Network { return Network{c.Options} }

// HostDevices returns the devices and directories of the Host that the VM uses.
func (c VMConfig) HostDevices() HostDevices { return HostDevices{c.Options} }

// slots returns the options that match a pattern, sorted by bus and number.
func slots(options map[string]string, pattern *regexp.Regexp) []string {
	var slots []string
	for option := range options {
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

// splitTags splits a tag list. Proxmox writes ";" but also accepts "," and blanks.
func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}
