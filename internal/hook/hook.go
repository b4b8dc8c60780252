// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ScriptDir is where root puts scripts. It is not below /etc/pve, which the cluster file system shares with whoever can
// write there.
const ScriptDir = "/etc/pve-hook.d"

// PreStart is the phase before the VM starts: Proxmox does not start it when the hookscript fails.
const PreStart = "pre-start"

// postStart is the phase in which vCPUs can be pinned.
const postStart = "post-start"

var phases = []string{PreStart, postStart, "pre-stop", "post-stop"}

// Host is the machine that the hook runs on.
type Host struct {
	// Root is where the file system begins; / but in tests.
	Root string
	// Owner is the user ID that scripts must belong to: root's.
	Owner uint32
	// Timeout of one script.
	Timeout time.Duration
	// Attempts to find the threads of the vCPUs, a tenth of a second apart.
	Attempts int
	// Affinity ties a thread to a CPU.
	Affinity func(thread, cpu int) error
	// Log goes into the log of Proxmox's task.
	Log io.Writer
}

// ThisHost is the host that we run on.
func ThisHost(log io.Writer) Host {
	return Host{Root: "/", Timeout: 30 * time.Second, Attempts: 20, Affinity: setAffinity, Log: log}
}

// Run does what is due for a VM in a phase. Guests that are not ours are none of its business.
func (h Host) Run(ctx context.Context, args []string) error {
	vmid, phase, err := arguments(args)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(h.path(fmt.Sprintf("/etc/pve/qemu-server/%d.conf", vmid)))
	if err != nil {
		return fmt.Errorf("reading the VM's configuration, %w", err)
	}
	c := parseConf(string(content))
	m, ours := c.mark(vmid)
	if !ours {
		return nil
	}
	if m.Newer() {
		return errors.New("a newer controller wrote the VM's notes than this hookscript can read: install the one of the controller's release")
	}
	var pinned error
	if phase == postStart && len(m.Pin) > 0 {
		pinned = h.pin(vmid, c, m)
	}
	return errors.Join(pinned, h.runScripts(ctx, vmid, phase, m.Hooks))
}

func arguments(args []string) (vmid int, phase string, err error) {
	if len(args) != 2 {
		return 0, "", fmt.Errorf("found the arguments %q, want VMID PHASE, as Proxmox calls a hookscript", args)
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

func (h Host) say(format string, args ...any) {
	_, _ = fmt.Fprintf(h.Log, "pve-hook: "+format+"\n", args...)
}
