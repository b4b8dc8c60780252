// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package util is a part of Ignition. This file replaces its access to block devices, which
// needs the headers of libblkid and is used only to partition and format disks.
package util

import "errors"

// DiskInfo describes a disk.
type DiskInfo struct {
	LogicalSectorSize int
	Partitions        []PartitionInfo
}

// PartitionInfo describes a partition.
type PartitionInfo struct {
	Label, GUID, TypeGUID      string
	StartSector, SizeInSectors int64
	Number                     int
}

// FilesystemInfo describes a file system.
type FilesystemInfo struct{ Type, UUID, Label string }

// GetPartition returns no partition.
func (DiskInfo) GetPartition(int) (PartitionInfo, bool) { return PartitionInfo{}, false }

// GetFilesystemInfo fails.
func GetFilesystemInfo(string, bool) (FilesystemInfo, error) {
	return FilesystemInfo{}, errors.ErrUnsupported
}

// DumpDisk fails.
func DumpDisk(string) (DiskInfo, error) { return DiskInfo{}, errors.ErrUnsupported }

// GetBlockDevices fails.
func GetBlockDevices(string) ([]string, error) { return nil, errors.ErrUnsupported }
