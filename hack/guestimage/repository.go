// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// kubeletUnit is the path of the kubelet's unit, and of the directory of its drop-ins without ".d".
const kubeletUnit = "usr/lib/systemd/system/kubelet.service"

// debianPackage is a package of the repository, which has the content of a package of pkgs.k8s.io.
type debianPackage struct {
	name, depends string
	// unit is a file of the root directory of prepared images.
	unit string
}

var debianPackages = []debianPackage{
	{"kubelet", "iptables, conntrack, ethtool, socat, containernetworking-plugins", kubeletUnit},
	{"kubeadm", "kubelet", kubeletUnit + ".d/10-kubeadm.conf"},
}

// repository writes what a plain image downloads at first boot: a repository of Debian packages with kubelet and kubeadm,
// and the container images. It is not signed. Prepared images need none.
func (b build) repository() error {
	if !b.plain {
		return nil
	}
	dir := b.path("repository")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("creating the repository: %w", err)
	}
	index := ""
	for _, p := range debianPackages {
		entry, err := b.debianPackage(p, dir)
		if err != nil {
			return fmt.Errorf("building package %s: %w", p.name, err)
		}
		index += entry + "\n"
	}
	release := fmt.Sprintf("Date: %s\nSHA256:\n %s %d Packages\n", time.Now().UTC().Format(time.RFC1123), digest([]byte(index)), len(index))
	for name, content := range map[string]string{"Packages": index, "Release": release, "Release.key": "not signed\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("writing the repository: %w", err)
		}
	}
	return os.Rename(b.path("images.tar"), filepath.Join(dir, "images.tar"))
}

// debianPackage builds a package and returns its entry in the index.
func (b build) debianPackage(p debianPackage, dir string) (entry string, err error) {
	unit, err := files.ReadFile("root/" + p.unit)
	if err != nil {
		return "", err
	}
	program, err := os.ReadFile(b.path(p.name))
	if err != nil {
		return "", err
	}
	control := strings.Join([]string{
		"Package: " + p.name, "Version: 1", "Architecture: amd64", "Maintainer: guestimage", "Depends: " + p.depends,
		"Description: " + p.name + " of kubeplane's Go module", "",
	}, "\n")
	root := b.path(p.name + "-package")
	for name, file := range map[string]struct {
		content []byte
		mode    os.FileMode
	}{"DEBIAN/control": {[]byte(control), 0o644}, p.unit: {unit, 0o644}, "usr/bin/" + p.name: {program, 0o755}} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, file.content, file.mode); err != nil {
			return "", err
		}
	}
	archive := filepath.Join(dir, p.name+".deb")
	if err := command("", "dpkg-deb", "--root-owner-group", "-Zgzip", "--build", root, archive); err != nil {
		return "", err
	}
	content, err := os.ReadFile(archive)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%sFilename: %s.deb\nSize: %d\nSHA256: %s\n", control, p.name, len(content), digest(content)), nil
}
