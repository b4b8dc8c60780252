// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qm models a VM's config file: options, pending changes, property strings, drives and network devices.
package qm

import (
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Config is the content of one VM's config file.
type Config struct {
	Options map[string]string
	// Pending holds changes that wait for the next start, Deleted the options that will then go away.
	Pending   map[string]string
	Deleted   map[string]bool
	Snapshots []Snapshot
	// Parent is the snapshot that the current state descends from.
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

// Clone copies the config deeply.
func (c *Config) Clone() *Config {
	out := New(c.Options)
	maps.Copy(out.Pending, c.Pending)
	maps.Copy(out.Deleted, c.Deleted)
	out.Snapshots = slices.Clone(c.Snapshots)
	out.Parent = c.Parent
	return out
}

// Digest is the checksum by which clients detect that somebody else changed the config.
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

// Merged is what a plain GET shows: pending changes applied.
func (c *Config) Merged() map[string]string {
	out := maps.Clone(c.Options)
	for k := range c.Deleted {
		delete(out, k)
	}
	maps.Copy(out, c.Pending)
	return out
}

// Lock is the value of the "lock:" key, or "".
func (c *Config) Lock() string { return c.Options["lock"] }

// IsTemplate tells whether the VM is a template.
func (c *Config) IsTemplate() bool { return c.Options["template"] == "1" }

// On reads a boolean option; def holds when it is not set.
func (c *Config) On(option string, def bool) bool {
	v, ok := c.Options[option]
	if !ok {
		return def
	}
	return v == "1"
}

// Int reads a number; def holds when it is not set or not a number. A property string counts with its first value.
func (c *Config) Int(option string, def int64) int64 {
	return Number(c.Options[option], def)
}

// Number reads the leading value of a property string such as "512" or "current=512".
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

// DriveKeys lists the options that are drives, in the order in which Proxmox walks them.
func DriveKeys(options map[string]string) []string {
	var keys []string
	for k := range options {
		if IsDriveKey(k) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// IsDriveKey tells whether an option names a drive. It is called for every option of every guest in each cycle of
// pvestatd, so it does without patterns.
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

// IsNetKey tells whether an option names a network device.
func IsNetKey(option string) bool { return isNumbered(option, "net") }

// NetKeys lists the network devices of a VM in order.
func NetKeys(options map[string]string) []string {
	var keys []string
	for k := range options {
		if IsNetKey(k) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return keys
}

// NormalizeTags lower-cases, sorts and de-duplicates tags and joins them with semicolons.
func NormalizeTags(v string) string {
	tags := TagList(v)
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), ";")
}

// TagList splits tags and lower-cases them.
func TagList(v string) []string {
	return strings.FieldsFunc(strings.ToLower(v), func(r rune) bool { return strings.ContainsRune(",; \t", r) })
}

// Snapshot finds a snapshot by its name, or returns nil.
func (c *Config) Snapshot(name string) *Snapshot {
	for i := range c.Snapshots {
		if c.Snapshots[i].Name == name {
			return &c.Snapshots[i]
		}
	}
	return nil
}
