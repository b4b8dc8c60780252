// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// hardware creates the files of the VM and returns the input of the command line.
func (g *guest) hardware(ctx context.Context, disks []pvesim.Disk) (*hardware, error) {
	r, m := g.runtime, g.machine
	h := &hardware{
		name: m.Name, options: m.Options(), smbios: m.SMBIOS, disks: map[string]string{}, firmware: map[string]string{}, sockets: map[string]string{},
		console: r.ConsoleLog(m.VMID), socket: r.ConsoleSocket(m.VMID), kvm: r.kvm(),
		kernel: directKernel{path: r.options.Kernel, initrd: r.options.Initrd, args: r.options.KernelArgs},
	}
	for _, nic := range m.NICs {
		if r.network == nil {
			break
		}
		socket, err := r.network.Socket(nic.Bridge, nic.VLAN)
		if err != nil {
			return nil, fmt.Errorf("NIC %s: %w", nic.Name, err)
		}
		h.sockets[nic.Name] = socket
	}
	g.sizes, g.media = map[string]int64{}, map[string]string{}
	var vars pvesim.Disk
	for _, disk := range disks {
		switch bus, _ := slotNumber(disk.Slot); bus {
		case "efidisk":
			vars = disk
		case "tpmstate":
			r.logf("VM %d (%s): %s: QEMU guests have no TPM", m.VMID, m.Name, disk.Slot)
		default:
			if err := r.createOverlay(ctx, disk); err != nil {
				return nil, fmt.Errorf("disk %s: %w", disk.Slot, err)
			}
			h.disks[disk.Slot], g.sizes[disk.Slot] = disk.Path, disk.Bytes
		}
	}
	var err error
	if h.media, err = g.writeMedia(); err != nil {
		return nil, err
	}
	for _, slot := range sortedSlots(h.options) {
		if d, ok := qm.ParseDrive(slot, h.options[slot]); ok && d.IsCDROM() {
			g.media[slot] = mediumOf(d)
		}
	}
	if h.options["bios"] == "ovmf" {
		if err := g.addUEFI(h, vars); err != nil {
			return nil, err
		}
	}
	if err := g.startShares(h); err != nil {
		return nil, err
	}
	return h, g.writeFirmware(h)
}

// createOverlay creates the file of a disk, or enlarges it to the size of the disk.
func (r *Runtime) createOverlay(ctx context.Context, disk pvesim.Disk) error {
	if disk.Path == "" {
		return errors.New("the simulator has no directory for disks")
	}
	size, err := virtualSize(disk.Path)
	switch {
	case err == nil && size < disk.Bytes:
		return r.runImage(ctx, "resize", "-q", "-f", "qcow2", disk.Path, strconv.FormatInt(disk.Bytes, 10))
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reading size: %w", err)
	}
	args, minimum := []string{"create", "-q", "-f", "qcow2"}, int64(0)
	if disk.Base != "" {
		format, err := imageFormat(disk.Base)
		if err != nil {
			return fmt.Errorf("reading image: %w", err)
		}
		if minimum, err = virtualSize(disk.Base); err != nil {
			return fmt.Errorf("reading size of image: %w", err)
		}
		args = append(args, "-b", disk.Base, "-F", format)
	}
	return r.runImage(ctx, append(args, disk.Path, strconv.FormatInt(max(minimum, disk.Bytes), 10))...)
}

func (r *Runtime) runImage(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, r.image, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("running qemu-img %v: %w\n%s", args, err, out)
	}
	return nil
}

// Signatures of image formats. Other images are raw.
var signatures = map[string]string{"QFI\xfb": "qcow2", "KDMV": "vmdk"}

func readHeader(path string) (header [32]byte, size int64, err error) {
	file, err := os.Open(path) //nolint:gosec // an image or a disk
	if err != nil {
		return header, 0, err
	}
	defer func() { _ = file.Close() }()
	if _, err := io.ReadFull(file, header[:]); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return header, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return header, 0, err
	}
	return header, info.Size(), nil
}

func imageFormat(path string) (string, error) {
	header, _, err := readHeader(path)
	if format := signatures[string(header[:4])]; format != "" {
		return format, err
	}
	return "raw", err
}

// virtualSize returns the size of the disk in an image.
func virtualSize(path string) (int64, error) {
	header, size, err := readHeader(path)
	if err == nil && signatures[string(header[:4])] == "qcow2" {
		size = int64(binary.BigEndian.Uint64(header[24:])) //nolint:gosec // no image has 8 EiB
	}
	return size, err
}

// uefiDir is the directory of the UEFI firmware in Debian and Ubuntu.
const uefiDir = "/usr/share/OVMF"

// addUEFI adds the firmware and the file of its variables: on the EFI disk, or a temporary one.
func (g *guest) addUEFI(h *hardware, disk pvesim.Disk) error {
	suffixes := []string{"_4M", ""}
	if qm.ParseFields(h.options["efidisk0"])["efitype"] != "4m" {
		slices.Reverse(suffixes)
	}
	for _, size := range suffixes {
		code, vars := "OVMF_CODE"+size+".fd", "OVMF_VARS"+size+".fd"
		if isSecureBoot(h.options) {
			vars = "OVMF_VARS" + size + ".ms.fd"
			if isQ35(h.options["machine"]) { // SMM, which protects the variables, needs q35
				code = "OVMF_CODE" + size + ".secboot.fd"
			}
		}
		h.code = filepath.Join(uefiDir, code)
		if _, err := os.Stat(h.code); err != nil {
			continue
		}
		initial := filepath.Join(uefiDir, vars)
		if h.vars = disk.Path; h.vars == "" {
			h.vars = filepath.Join(g.dir, "efivars.fd")
		}
		if disk.Base != "" {
			initial = disk.Base
		}
		return copyMissing(h.vars, initial)
	}
	return fmt.Errorf("bios ovmf: there is no firmware in %s; on Debian and Ubuntu, run: apt-get install ovmf", uefiDir)
}

// copyMissing copies a file unless the copy exists.
func copyMissing(to, from string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	data, err := os.ReadFile(from) //nolint:gosec // of the firmware, or a disk
	if err != nil {
		return fmt.Errorf("reading UEFI variables: %w", err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		return fmt.Errorf("writing UEFI variables: %w", err)
	}
	return nil
}

// writeFirmware writes the files of the fw_cfg interface.
func (g *guest) writeFirmware(h *hardware) error {
	for i, name := range slices.Sorted(maps.Keys(g.machine.Firmware)) {
		file := filepath.Join(g.dir, fmt.Sprintf("fw_cfg-%d", i))
		if err := os.WriteFile(file, g.machine.Firmware[name], 0o600); err != nil {
			return fmt.Errorf("writing firmware file %s: %w", name, err)
		}
		h.firmware[name] = file
	}
	return nil
}
