// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cdrom builds the ISO that Proxmox generates for a VM's cloud-init drive.
package cdrom

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

// Build returns an ISO image with the given label and files.
func Build(label string, files map[string]string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "pvesim-iso-")
	if err != nil {
		return nil, fmt.Errorf("building an ISO: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	image := filepath.Join(dir, "image.iso")
	if err := write(image, filepath.Join(dir, "work"), label, files); err != nil {
		return nil, fmt.Errorf("building an ISO: %w", err)
	}
	return os.ReadFile(image) //nolint:gosec // written just above
}

func write(image, work, label string, files map[string]string) (err error) {
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	const size, block = 4 << 20, 2048
	out, err := file.CreateFromPath(image, size)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := out.Close(); err == nil {
			err = cerr
		}
	}()
	fs, err := iso9660.Create(out, size, 0, block, work)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := fs.OpenFile("/"+name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(f, files[name]); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: label})
}
