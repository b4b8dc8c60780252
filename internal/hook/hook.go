// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hook implements the hookscript that runs as root on a Proxmox host when a VM of this provider starts or stops. It
// runs scripts and pins vCPUs as listed in the ownership mark in the VM's notes. It also publishes the topology of the host,
// which Proxmox's API does not report, for the controller.
//
// A user who may edit a VM's notes must not gain root privileges: scripts are selected by file name from one directory that
// only root may write, and CPUs must be both granted by the mark and online on the host.
package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scriptDir is the directory of the scripts. It is not below /etc/pve, which the cluster file system shares with all hosts.
const scriptDir = "/etc/pve-hook.d"

// preStart is the phase before the VM starts. Proxmox does not start it if the hookscript fails.
const preStart = "pre-start"

// postStart is the phase in which vCPUs can be pinned.
const postStart = "post-start"

var phases = []string{preStart, postStart, "pre-stop", "post-stop"}

// Host is the machine that the hook runs on.
type Host struct {
	// Root is the root directory; / except in tests.
	Root string
	// Owner is the user ID that must own the scripts: root's.
	Owner uint32
	// Timeout of one script.
	Timeout time.Duration
	// Attempts limits the retries to find the threads of the vCPUs, 100 ms apart.
	Attempts int
	// Affinity pins a thread to a CPU.
	Affinity func(thread, cpu int) error
	// Name is the name of the host in Proxmox.
	Name string
	// Pvesh runs the command pvesh and returns its output.
	Pvesh func(ctx context.Context, args ...string) ([]byte, error)
	// Log is written to the log of Proxmox's task.
	Log io.Writer
	// Out is where the topology is printed.
	Out io.Writer
}

// ThisHost returns the host that the process runs on.
func ThisHost(out, log io.Writer) Host {
	return Host{
		Root: "/", Timeout: 30 * time.Second, Attempts: 20, Affinity: setAffinity,
		Name: hostName(), Pvesh: runPvesh, Log: log, Out: out,
	}
}

// Run pins the vCPUs and runs the scripts of a VM in a phase. It ignores guests that this provider does not own. With the
// argument "topology" it prints the topology of the host, with "topology --publish" it publishes it for the controller.
func (h Host) Run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == topologyCommand {
		return h.runTopology(ctx, args[1:])
	}
	vmid, phase, err := parseArguments(args)
	if err != nil {
		return err
	}
	content, source, err := h.readConf(vmid)
	if err != nil {
		return fmt.Errorf("reading the VM's configuration: %w", err)
	}
	c := parseConf(string(content))
	m, owned := c.mark(vmid)
	if !owned {
		return nil
	}
	if m.Newer() {
		return errors.New("the VM's notes were written by a newer controller: install the hookscript of the controller's release")
	}
	if phase == preStart {
		h.refreshTopology(ctx)
	}
	var pinErr error
	switch {
	case phase != postStart || len(m.Pin) == 0:
	case source != "":
		h.logf("the VM is migrated from host %s: its vCPUs are not pinned, because their CPUs were assigned on that host", source)
	case m.Host != "" && m.Host != h.Name:
		h.logf("the VM was moved from host %s: its vCPUs are not pinned, because their CPUs were assigned on that host", m.Host)
	default:
		pinErr = h.pin(vmid, c, m)
	}
	return errors.Join(pinErr, h.runScripts(ctx, vmid, phase, m.Hooks))
}

// readConf returns the configuration of a VM. Until the end of a live migration it belongs to the source, whose name is
// returned as well.
func (h Host) readConf(vmid int) (content []byte, source string, err error) {
	content, err = os.ReadFile(h.path(fmt.Sprintf("/etc/pve/qemu-server/%d.conf", vmid)))
	if !errors.Is(err, fs.ErrNotExist) {
		return content, "", err
	}
	found, globErr := filepath.Glob(h.path(fmt.Sprintf("/etc/pve/nodes/*/qemu-server/%d.conf", vmid)))
	if globErr != nil || len(found) != 1 {
		return nil, "", err
	}
	content, err = os.ReadFile(found[0])
	return content, filepath.Base(filepath.Dir(filepath.Dir(found[0]))), err
}

func parseArguments(args []string) (vmid int, phase string, err error) {
	if len(args) != 2 {
		return 0, "", fmt.Errorf("found the arguments %q, want VMID PHASE, as Proxmox calls a hookscript, or %s", args, topologyCommand)
	}
	if vmid, err = strconv.Atoi(args[0]); err != nil || vmid < 100 {
		return 0, "", fmt.Errorf("found the VMID %q, want a number from 100", args[0])
	}
	if !slices.Contains(phases, args[1]) {
		return 0, "", fmt.Errorf("found the phase %q, want one of %s", args[1], strings.Join(phases, ", "))
	}
	return vmid, args[1], nil
}

func (h Host) path(absolute string) string { return filepath.Join(h.Root, absolute) }

func (h Host) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(h.Log, "pve-hook: "+format+"\n", args...)
}
