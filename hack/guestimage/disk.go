// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/diskfs/go-diskfs/partition/gpt"
)

// The partitions have the numbers and the order of Debian's cloud images: root is the first by number and the last on the
// disk, so growpart can enlarge it.
const (
	mib      = 1 << 20
	diskSize = 3 << 30
	biosBoot = 1 * mib
	esp      = 2 * mib
	root     = 64 * mib
	rootSize = diskSize - root - mib // the backup of the partition table is at the end
	sector   = 512
)

// disk assembles the disk without mounting it.
func (b build) disk() error {
	boot, err := readBootFiles(b.path("root.tar"))
	if err != nil {
		return fmt.Errorf("reading the root file system: %w", err)
	}
	for from, to := range map[string]string{"vmlinuz": "vmlinuz", "initrd.img": "initrd"} {
		if err := os.WriteFile(b.path(to), boot[from], 0o644); err != nil {
			return fmt.Errorf("writing the kernel: %w", err)
		}
	}
	raw, err := file.CreateFromPath(b.path("raw"), diskSize)
	if err != nil {
		return fmt.Errorf("creating the disk: %w", err)
	}
	err = writeBootPartitions(raw, boot)
	if err := errors.Join(err, raw.Close()); err != nil {
		return fmt.Errorf("writing the boot partitions: %w", err)
	}
	// Unpacking the files needs the right to change owners and to create devices, or fakeroot.
	script := fmt.Sprintf(`PATH=$PATH:/usr/sbin
mkdir root && tar -C root --numeric-owner --same-permissions --extract --file root.tar &&
mke2fs -q -F -t ext4 -O ^metadata_csum_seed -L root -d root -E offset=%d raw %dk && rm -rf root`, root, rootSize>>10)
	args := []string{"sh", "-c", script}
	if os.Geteuid() != 0 {
		args = append([]string{"fakeroot"}, args...)
	}
	if err := command(b.work, args[0], args[1:]...); err != nil {
		return err
	}
	return command(b.work, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "raw", "qcow2")
}

// readBootFiles returns the kernel, its initial RAM disk and the boot loaders, by name without version.
func readBootFiles(path string) (map[string][]byte, error) {
	content, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	boot := map[string][]byte{"vmlinuz": nil, "initrd.img": nil, "boot.img": nil, "core.img": nil, "bootx64.efi": nil}
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name, inBoot := strings.CutPrefix(strings.TrimPrefix(header.Name, "./"), "boot/")
		name, _, _ = strings.Cut(strings.TrimPrefix(name, "grub/"), "-")
		if _, needed := boot[name]; !inBoot || !needed || header.Typeflag != tar.TypeReg {
			continue
		}
		if boot[name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
	for name, content := range boot {
		if len(content) == 0 {
			return nil, fmt.Errorf("%s is missing", name)
		}
	}
	return boot, nil
}

// writeBootPartitions writes the partition table, GRUB for SeaBIOS, and the EFI system partition.
func writeBootPartitions(raw backend.Storage, boot map[string][]byte) error {
	table := &gpt.Table{ProtectiveMBR: true, Partitions: []*gpt.Partition{
		{Index: 1, Start: root / sector, Size: rootSize, Type: gpt.LinuxRootX86_64, Name: "root"},
		{Index: 14, Start: biosBoot / sector, Size: esp - biosBoot, Type: gpt.BIOSBoot, Name: "bios"},
		{Index: 15, Start: esp / sector, Size: root - esp, Type: gpt.EFISystemPartition, Name: "esp"},
	}}
	file, err := raw.Writable()
	if err != nil {
		return err
	}
	if err := table.Write(file, diskSize); err != nil {
		return err
	}
	system, err := fat32.Create(raw, root-esp, esp, sector, "ESP", false)
	if err != nil {
		return err
	}
	if err := system.Mkdir("/EFI/BOOT"); err != nil {
		return err
	}
	loader, err := system.OpenFile("/EFI/BOOT/BOOTX64.EFI", os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}
	if _, err := loader.Write(boot["bootx64.efi"]); err != nil {
		return err
	}
	if err := loader.Close(); err != nil {
		return err
	}
	return writeBIOSLoader(file, boot["boot.img"], boot["core.img"])
}

// writeBIOSLoader writes the two parts of GRUB for SeaBIOS, the same as grub-bios-setup: boot.img is the code in the first
// sector of the disk, which loads the first sector of core.img, which loads the rest of it.
func writeBIOSLoader(disk io.WriterAt, bootImage, core []byte) error {
	if len(bootImage) != sector || len(core) > esp-biosBoot {
		return fmt.Errorf("found boot.img with %d bytes, want %d, and core.img with %d, want at most %d", len(bootImage), sector, len(core), esp-biosBoot)
	}
	const (
		codeSize   = 440 // of the first sector; the partition table follows
		coreSector = 0x5c
		restSector = sector - 12
	)
	binary.LittleEndian.PutUint64(bootImage[coreSector:], biosBoot/sector)
	binary.LittleEndian.PutUint64(core[restSector:], biosBoot/sector+1)
	if _, err := disk.WriteAt(bootImage[:codeSize], 0); err != nil {
		return err
	}
	_, err := disk.WriteAt(core, biosBoot)
	return err
}
