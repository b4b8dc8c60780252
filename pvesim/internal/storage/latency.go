// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"time"
)

// Latency is how long the operations of a storage take.
type Latency struct {
	Alloc, LinkedClone, Free, Snapshot time.Duration
	// CopyBytesPerSecond is the bandwidth of full clones and imports.
	CopyBytesPerSecond int64
}

// Profiles are latencies of typical storages, measured on running hosts and rounded.
var Profiles = map[string]Latency{
	"nvme-lvmthin": {
		Alloc: 120 * time.Millisecond, LinkedClone: 180 * time.Millisecond, Free: 150 * time.Millisecond,
		Snapshot: 150 * time.Millisecond, CopyBytesPerSecond: 900 << 20,
	},
	"zfs": {
		Alloc: 90 * time.Millisecond, LinkedClone: 110 * time.Millisecond, Free: 400 * time.Millisecond,
		Snapshot: 80 * time.Millisecond, CopyBytesPerSecond: 600 << 20,
	},
	"ceph": {
		Alloc: 450 * time.Millisecond, LinkedClone: 700 * time.Millisecond, Free: 1200 * time.Millisecond,
		Snapshot: 600 * time.Millisecond, CopyBytesPerSecond: 250 << 20,
	},
	"hdd-dir": {
		Alloc: 60 * time.Millisecond, LinkedClone: 90 * time.Millisecond, Free: 120 * time.Millisecond,
		Snapshot: 300 * time.Millisecond, CopyBytesPerSecond: 120 << 20,
	},
	"ssd-dir": {
		Alloc: 60 * time.Millisecond, LinkedClone: 60 * time.Millisecond, Free: 40 * time.Millisecond,
		Snapshot: 60 * time.Millisecond, CopyBytesPerSecond: 450 << 20,
	},
}

// profileOf is the default profile of a storage type.
var profileOf = map[string]string{
	"dir": "ssd-dir", "nfs": "hdd-dir", "cifs": "hdd-dir", "lvmthin": "nvme-lvmthin", "lvm": "nvme-lvmthin", "zfspool": "zfs", "rbd": "ceph",
}

// LatencyOf returns the latencies of a storage.
func (st *Store) LatencyOf(s *Storage) Latency {
	if l, ok := st.latency[s.Type]; ok {
		return l
	}
	return Profiles[profileOf[s.Type]]
}
