// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Snapshot is a Cluster at one moment. It is never changed once made: a new
// reading is a new Snapshot.
type Snapshot struct {
	Region string
	// Taken is when the reading succeeded; the age of the view.
	Taken    time.Time
	Version  proxmox.Version
	Options  proxmox.ClusterOptions
	Hosts    map[string]Host
	Guests   map[int]Guest // by VMID, unique in a Cluster
	Storages map[StorageKey]proxmox.StorageRow
}

// Host is a Host with what its guests were promised.
type Host struct {
	proxmox.HostRow
	// Allocated sums what the guests on it are configured for (see Allocated).
	Allocated Amount
}

// Guest is a row, with the configuration where we need it: templates, and
// whatever lies in our VMID range. Config is nil until it was read.
type Guest struct {
	proxmox.GuestRow
	Config *proxmox.VMConfig
}

// StorageKey names a storage on a Host.
type StorageKey struct{ Host, Storage string }

// Amount is a quantity of what a Host gives to VMs.
type Amount struct {
	CPUs        int
	MemoryBytes int64
}

// Reservation is capacity and a VMID promised to a Claim but perhaps not yet
// visible in a Snapshot. It counts until the poll shows the VM with figures.
type Reservation struct {
	ClaimUID string
	NodePool string
	Region   string
	Host     string
	VMID     int
	Storage  string
	Amount
	DiskBytes int64
	// Made is when it was promised.
	Made time.Time
}

// View is what is known at one moment: the last good Snapshot of every Cluster
// and the Reservations on top. It is never changed once made.
type View struct {
	// Snapshots by region. A Cluster that was never read has none.
	Snapshots map[string]*Snapshot
	// Failures by region: why the last poll failed, absent when it succeeded.
	Failures map[string]error
	// Reservations by claim UID.
	Reservations map[string]Reservation
}
