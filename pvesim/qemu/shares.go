// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// virtiofsPrograms are the paths of virtiofsd with the arguments for a directory. The first one is part of Debian 13,
// the second one of Debian 12 and needs root.
var virtiofsPrograms = []virtiofsProgram{
	{"/usr/libexec/virtiofsd", func(dir string) []string { return []string{"--shared-dir", dir, "--sandbox", "none"} }},
	{"/usr/lib/qemu/virtiofsd", func(dir string) []string { return []string{"-o", "source=" + dir} }},
}

type virtiofsProgram struct {
	path string
	args func(dir string) []string
}

// shareFD is the socket that virtiofsd inherits.
const shareFD = 3

// startShares starts a server for each virtiofs share and sets their sockets.
func (g *guest) startShares(h *hardware) error {
	for i, tag := range slices.Sorted(maps.Keys(g.machine.Shares)) {
		socket := filepath.Join(g.dir, fmt.Sprintf("share%d.sock", i))
		if err := g.startShare(g.machine.Shares[tag], socket); err != nil {
			return fmt.Errorf("virtiofs share %s: %w", tag, err)
		}
		h.shares = append(h.shares, share{tag: tag, socket: socket})
	}
	return nil
}

func (g *guest) startShare(dir, socket string) error {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	for _, program := range virtiofsPrograms {
		if _, err := os.Stat(program.path); err != nil {
			continue
		}
		cmd := exec.CommandContext(context.Background(), program.path, append(program.args(dir), fmt.Sprintf("--fd=%d", shareFD))...)
		cmd.ExtraFiles = []*os.File{file}
		p, err := startProcess(cmd)
		if err == nil {
			g.servers = append(g.servers, p)
		}
		return err
	}
	return errors.New("virtiofsd is not installed; on Debian and Ubuntu, run: apt-get install virtiofsd")
}

// share is a virtiofs share.
type share struct{ tag, socket string }

// plan9 matches a 9p share in the VM's args.
var plan9 = regexp.MustCompile(`-virtfs\s+(\S+)`)

// addShares adds virtiofs and 9p shares. Both sides of virtiofs need the memory of the VM.
func (h *hardware) addShares(a *arguments) {
	if len(h.shares) > 0 {
		memory := qm.New(h.options).Int("memory", 512)
		a.add("-object", fmt.Sprintf("memory-backend-memfd,id=ram,size=%dM,share=on", memory), "-machine", "memory-backend=ram")
	}
	for i, s := range h.shares {
		a.add("-chardev", fmt.Sprintf("socket,id=virtiofs%d,path=%s", i, escape(s.socket)))
		a.device("vhost-user-fs-pci,queue-size=1024,chardev=virtiofs%d,tag=%s", i, escape(s.tag))
	}
	for _, match := range plan9.FindAllStringSubmatch(h.options["args"], -1) {
		a.add("-virtfs", match[1])
	}
}
