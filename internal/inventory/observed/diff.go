// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// HasChanged reports whether two Snapshots of a Cluster differ in anything that affects
// decisions. Load, uptime and similar values change with every poll and are ignored.
func HasChanged(a, b *Snapshot) bool {
	if a == nil || b == nil {
		return a != b
	}
	return a.Version != b.Version || a.Facts != b.Facts || a.MaintenanceUnknown != b.MaintenanceUnknown ||
		!reflect.DeepEqual(a.Options, b.Options) || !reflect.DeepEqual(a.Mappings, b.Mappings) ||
		!maps.EqualFunc(a.Hosts, b.Hosts, sameHost) ||
		!maps.EqualFunc(a.Guests, b.Guests, sameGuest) ||
		a.AddressesKnown != b.AddressesKnown || !a.Addresses.equal(b.Addresses) ||
		!maps.EqualFunc(a.Storages, b.Storages, sameStorage)
}

func sameHost(a, b Host) bool {
	return a.Online == b.Online && a.SizeReported == b.SizeReported && a.Maintenance == b.Maintenance && a.Arch == b.Arch &&
		a.CPUs == b.CPUs && a.MemoryBytes == b.MemoryBytes && a.Allocated == b.Allocated &&
		a.Hardware == b.Hardware
}

func sameGuest(a, b Guest) bool {
	return FingerprintOf(a.GuestRow) == FingerprintOf(b.GuestRow) &&
		a.Kind == b.Kind && a.Pool == b.Pool && a.HAState == b.HAState && a.DiskBytes == b.DiskBytes &&
		a.Allocated == b.Allocated && a.Stale == b.Stale && a.Config == b.Config
}

// sameStorage compares the usage in GiB, because smaller changes do not matter.
func sameStorage(a, b proxmox.StorageRow) bool {
	return a.Type == b.Type && a.Shared == b.Shared && a.Available == b.Available &&
		a.TotalBytes == b.TotalBytes && a.UsedBytes>>30 == b.UsedBytes>>30 && slices.Equal(a.Content, b.Content)
}

// Fingerprint contains the fields of a row that change together with the configuration.
type Fingerprint struct {
	host, name, status, lock, tags string
	template                       bool
	cpus                           int
	memory                         int64
}

// FingerprintOf returns the Fingerprint of a row.
func FingerprintOf(row proxmox.GuestRow) Fingerprint {
	return Fingerprint{
		host: row.Host, name: row.Name, status: row.Status, lock: row.Lock, tags: strings.Join(row.Tags, ";"),
		template: row.Template, cpus: row.CPUs, memory: row.MemoryBytes,
	}
}

// DevicesOnly omits fields that are unrelated to the devices and CPUs of a guest. A nightly
// backup of all guests must not cause reads of all configurations.
func (m Fingerprint) DevicesOnly() Fingerprint {
	m.name, m.lock, m.tags = "", "", ""
	return m
}
