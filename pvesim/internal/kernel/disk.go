// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"slices"
	"sync"
)

// GuestDisk is the part of a disk's content that simulated guests use: named files.
type GuestDisk struct {
	mu    sync.Mutex
	files map[string][]byte
}

// Read returns a file and whether it exists.
func (d *GuestDisk) Read(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, ok := d.files[name]
	return slices.Clone(data), ok
}

// Write stores a file.
func (d *GuestDisk) Write(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		d.files = map[string][]byte{}
	}
	d.files[name] = slices.Clone(data)
}

// Names returns the names of all files in order.
func (d *GuestDisk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.files))
	for n := range d.files {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Clone returns a copy of the disk.
func (d *GuestDisk) Clone() *GuestDisk {
	out := &GuestDisk{files: map[string][]byte{}}
	for _, n := range d.Names() {
		out.files[n], _ = d.Read(n)
	}
	return out
}
