// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// keyring contains the keys that sign Debian's archive. It has the same path in the image.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// packages are installed without what they recommend.
var packages = []string{
	// system
	"linux-image-cloud-amd64", "initramfs-tools", "xz-utils", "zstd", "systemd", "systemd-sysv", "systemd-resolved", "libpam-systemd", "dbus",
	"udev", "kmod", "procps", "iproute2", "ca-certificates", "sudo", "eject", "openssh-server", "qemu-guest-agent",
	// cloud-init, and what it needs to configure the network and enlarge the disk
	"cloud-init", "netplan.io", "cloud-guest-utils", "gdisk", "fdisk", "e2fsprogs",
	// boot loaders; customize.sh removes the packages
	"grub-pc-bin", "grub-efi-amd64-bin",
}

// runtimePackages are the container runtime, and what the kubelet calls. A plain image does not have them.
var runtimePackages = []string{
	"containerd", "runc", "containernetworking-plugins", "iptables", "nftables", "conntrack", "ethtool", "socat",
}

// files are the files of the image that are not in Debian packages, below root, and the script that completes it.
//
//go:embed root customize.sh
var files embed.FS

// rootFS installs the packages and completes the root file system. mmdebstrap selects its mode: root, or user namespaces.
func (b build) rootFS() error {
	if err := b.overlay(); err != nil {
		return fmt.Errorf("writing the overlay: %w", err)
	}
	include := slices.Concat(packages, runtimePackages)
	if b.plain {
		include = append(slices.Clone(packages), "curl") // as in Debian's cloud images
	}
	args := []string{
		"--variant=minbase", "--format=tar", "--include=" + strings.Join(include, ","),
		// The configuration of the initial RAM disk must exist before the kernel is installed.
		"--essential-hook=tar-in '" + b.path("overlay.tar") + "' /",
		`--customize-hook=chroot "$1" sh /tmp/guestimage/customize.sh`,
	}
	for _, path := range []string{"doc", "info", "locale", "man"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+path+"/*")
	}
	args = append(args, b.suite, b.path("root.tar"))
	signed := "deb [signed-by=" + keyring + "] http://deb.debian.org/debian"
	for _, source := range []string{" " + b.suite, " " + b.suite + "-updates", "-security " + b.suite + "-security"} {
		args = append(args, signed+source+" main")
	}
	return command("", "mmdebstrap", args...)
}

// overlay writes the archive that is unpacked over the root file system.
func (b build) overlay() error {
	file, err := os.Create(b.path("overlay.tar"))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	archive := tar.NewWriter(file)
	err = fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || b.plain && strings.HasPrefix(path, "root/"+kubeletUnit) {
			return err
		}
		content, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		name, inRoot := strings.CutPrefix(path, "root/")
		if !inRoot {
			name = "tmp/guestimage/" + path
		}
		return addFile(archive, name, 0o644, content)
	})
	if err != nil {
		return err
	}
	kubernetes := map[string]string{"kubelet": "usr/bin/kubelet", "kubeadm": "usr/bin/kubeadm", "images.tar": "tmp/guestimage/images.tar"}
	if b.plain {
		kubernetes = nil
	}
	for from, to := range kubernetes {
		content, err := os.ReadFile(b.path(from))
		if err != nil {
			return err
		}
		if err := addFile(archive, to, 0o755, content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return file.Close()
}
