// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
)

// Disks are the disks of a VM with the storages of a zone that they may use.
type Disks struct {
	// Boot are the storages for the boot disk. If it has no names, the Storage of the Need is
	// used.
	Boot Storages
	// More are the other disks.
	More []Disk
}

// Disk is a disk besides the boot disk.
type Disk struct {
	Name  string
	Bytes int64
	// Storages for the disk. If it has no names, the storage of the boot disk is used.
	Storages Storages
}

// Storages are the storages that a disk may use.
type Storages struct {
	// Names in order of preference.
	Names []string
	// MostFree prefers the storage with the most free capacity to the order of Names.
	MostFree bool
}

// checkDisks checks the storages of all disks.
func checkDisks(s *zoneState, need *Need, addReason reasonFunc) bool {
	if s.disks == nil {
		fits := checkQueue(s, need, addReason)
		return checkStorage(s, need, addReason) && fits
	}
	_, _, ok := s.chooseStorages(need, addReason)
	return ok
}

// chooseStorages returns the storage of the boot disk, and those of the other disks. Each
// disk gets the first one with enough free capacity, in addition to the disks before it.
func (s *zoneState) chooseStorages(need *Need, addReason reasonFunc) (boot string, more []string, ok bool) {
	if s.disks == nil {
		return s.storage, nil, true
	}
	boot, ok = s.chooseBootStorage(need, addReason)
	if !ok && addReason == nil {
		return boot, nil, false
	}
	taken := map[string]int64{boot: need.DiskBytes}
	for _, disk := range s.disks.More {
		names := s.order(disk.Storages, taken)
		if len(names) == 0 {
			names = []string{boot}
		}
		storage, found := s.chooseStorage(disk, names, taken, addReason)
		taken[storage] += disk.Bytes
		more, ok = append(more, storage), ok && found
	}
	return boot, more, ok
}

// chooseBootStorage returns the first storage that the boot disk fits on; if it fits on
// none, the first.
func (s *zoneState) chooseBootStorage(need *Need, addReason reasonFunc) (string, bool) {
	names := s.order(s.disks.Boot, nil)
	if len(names) == 0 {
		names = []string{s.storage}
	}
	for _, name := range names {
		if on := s.withStorage(name); checkQueue(&on, need, nil) && checkStorage(&on, need, nil) {
			return name, true
		}
	}
	if addReason != nil {
		for _, name := range names {
			on := s.withStorage(name)
			checkQueue(&on, need, addReason)
			checkStorage(&on, need, addReason)
		}
	}
	return names[0], false
}

// chooseStorage returns the first storage that a disk fits on; if it fits on none, the
// first.
func (s *zoneState) chooseStorage(disk Disk, names []string, taken map[string]int64, addReason reasonFunc) (string, bool) {
	fits := func(name string, addReason reasonFunc) bool {
		on := s.withStorage(name)
		on.disk.FreeBytes -= taken[name]
		return checkStorage(&on, &Need{DiskBytes: disk.Bytes}, addReason)
	}
	for _, name := range names {
		if fits(name, nil) {
			return name, true
		}
	}
	if addReason != nil {
		for _, name := range names {
			fits(name, func(format string, args ...any) { addReason("disk "+disk.Name+": "+format, args...) })
		}
	}
	return names[0], false
}

// order returns the storages in the order in which they are tried.
func (s *zoneState) order(storages Storages, taken map[string]int64) []string {
	if !storages.MostFree {
		return storages.Names
	}
	free := func(name string) int64 { return s.withStorage(name).disk.FreeBytes - taken[name] }
	return slices.SortedStableFunc(slices.Values(storages.Names), func(a, b string) int { return cmp.Compare(free(b), free(a)) })
}
