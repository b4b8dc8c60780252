// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qm parses and formats VM configs: options, pending changes, property strings, drives and network devices.
package qm

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Config is the content of a VM's config file.
type Config struct {
	Options map[string]string
	// Pending are changes that take effect at the next start. Deleted are options that are then removed.
	Pending   map[string]string
	Deleted   map[string]bool
	Snapshots []Snapshot
	// Parent is the snapshot that the current state is based on.
	Parent string
}

// Snapshot is a saved state of the options.
type Snapshot struct {
	Name, Description, Parent string
	Time                      int64
	Options                   map[string]string
}

// New returns a config with the given options.
func New(options map[string]string) *Config {
	c := &Config{Options: map[string]string{}, Pending: map[string]string{}, Deleted: map[string]bool{}}
	maps.Copy(c.Options, options)
	return c
}

// Digest returns the checksum by which clients detect concurrent changes.
func (c *Config) Digest() string {
	var b strings.Builder
	write := func(m map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "%s: %s\n", k, m[k])
		}
	}
	write(c.Options)
	if len(c.Pending)+len(c.Deleted) > 0 {
		b.WriteString("[PENDING]\n")
		write(c.Pending)
		fmt.Fprintf(&b, "delete: %s\n", strings.Join(slices.Sorted(maps.Keys(c.Deleted)), ","))
	}
	for _, s := range c.Snapshots {
		fmt.Fprintf(&b, "[%s]\n", s.Name)
		write(s.Options)
	}
	sum := sha1.Sum([]byte(b.String())) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// Merged returns the options with pending changes applied, as a plain GET does.
func (c *Config) Merged() map[string]string {
	out := maps.Clone(c.Options)
	for k := range c.Deleted {
		delete(out, k)
	}
	maps.Copy(out, c.Pending)
	return out
}

// Lock returns the value of the "lock:" key, or "".
func (c *Config) Lock() string { return c.Options["lock"] }

// IsTemplate reports whether the VM is a template.
func (c *Config) IsTemplate() bool { return c.Options["template"] == "1" }

// Bool returns a boolean option, or def if it is not set.
func (c *Config) Bool(option string, def bool) bool {
	v, ok := c.Options[option]
	if !ok {
		return def
	}
	return v == "1"
}

// Int returns a numeric option, or def if it is not set or not a number. Of a property string, it returns the first
// value.
func (c *Config) Int(option string, def int64) int64 {
	return Number(c.Options[option], def)
}

// Number returns the first value of a property string such as "512" or "current=512", or def.
func Number(v string, def int64) int64 {
	first, _, _ := strings.Cut(v, ",")
	if _, val, ok := strings.Cut(first, "="); ok {
		first = val
	}
	end := 0
	for end < len(first) && (first[end] >= '0' && first[end] <= '9' || end == 0 && first[0] == '-') {
		end++
	}
	n, err := strconv.ParseInt(first[:end], 10, 64)
	if err != nil {
		return def
	}
	return n
}

// DriveKeys returns the options that are drives, in the order of Proxmox.
func DriveKeys(options map[string]string) []string {
	return slices.Sorted(matchingKeys(options, IsDriveKey))
}

func matchingKeys(options map[string]string, match func(option string) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range options {
			if match(k) && !yield(k) {
				return
			}
		}
	}
}

// IsDriveKey reports whether an option is a drive. It runs for each option of each guest in each cycle of pvestatd, so
// it does not use patterns.
func IsDriveKey(option string) bool {
	switch option {
	case "efidisk0", "tpmstate0":
		return true
	}
	return isNumbered(option, "ide") || isNumbered(option, "sata") || isNumbered(option, "scsi") || isNumbered(option, "virtio")
}

func isNumbered(option, prefix string) bool {
	rest, ok := strings.CutPrefix(option, prefix)
	if !ok || rest == "" {
		return false
	}
	for i := range len(rest) {
		if rest[i] < '0' || rest[i] > '9' {
			return false
		}
	}
	return true
}

// IsNetKey reports whether an option is a network device.
func IsNetKey(option string) bool { return isNumbered(option, "net") }

// NetKeys returns the options that are network devices, in order.
func NetKeys(options map[string]string) []string {
	return slices.SortedFunc(matchingKeys(options, IsNetKey), func(a, b string) int {
		return cmp.Or(len(a)-len(b), strings.Compare(a, b))
	})
}

// NormalizeTags returns tags in lower case, sorted and without duplicates, separated by semicolons.
func NormalizeTags(v string) string {
	tags := TagList(v)
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), ";")
}

// TagList returns tags as a list in lower case.
func TagList(v string) []string {
	return strings.FieldsFunc(strings.ToLower(v), func(r rune) bool { return strings.ContainsRune(",; \t", r) })
}

// Snapshot returns the snapshot with the given name, or nil.
func (c *Config) Snapshot(name string) *Snapshot {
	for i := range c.Snapshots {
		if c.Snapshots[i].Name == name {
			return &c.Snapshots[i]
		}
	}
	return nil
}

// AgentEnabled reports whether a value of the agent option enables the guest agent.
func AgentEnabled(v string) bool {
	first, _, _ := strings.Cut(v, ",")
	return first == "1" || first == "enabled=1" || strings.Contains(v, "enabled=1")
}

var trailingNumber = regexp.MustCompile(`\d+$`)

// Stem returns an option without its number. Options whose name ends in a digit keep it.
func Stem(option string) string {
	switch option {
	case "smbios1", "audio0", "rng0", "efidisk0", "tpmstate0":
		return option
	}
	return trailingNumber.ReplaceAllString(option, "")
}

// SharedDirectory returns the directory mapping of a virtiofs option.
func SharedDirectory(value string) string { return defaultField(value, "dirid") }

// IsHardwareRNG reports whether a value of rng0 passes through the host's random number generator.
func IsHardwareRNG(value string) bool { return defaultField(value, "source") == "/dev/hwrng" }

// defaultField returns the first field of a property string, whose key is optional.
func defaultField(value, key string) string {
	if field := ParseFields(value)[key]; field != "" {
		return field
	}
	first, _, _ := strings.Cut(value, ",")
	return first
}
