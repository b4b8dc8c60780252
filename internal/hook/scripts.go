// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// script finds the file of a name. Every doubt is an error: it would run as root.
func (h Host) script(name string) (string, error) {
	if !ownership.HookName.MatchString(name) {
		return "", fmt.Errorf("%q is no name of a script: want letters, digits, dot, dash and underscore, beginning with a letter or digit", name)
	}
	dir := h.path(ScriptDir)
	if err := h.trusted(dir, os.ModeDir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if err := h.trusted(path, 0); err != nil {
		return "", err
	}
	return path, nil
}

// trusted says no to what anybody but root could have put there or could change.
func (h Host) trusted(path string, kind os.FileMode) error {
	info, err := os.Lstat(path) // a link could lead anywhere
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode().Type() != kind:
		return fmt.Errorf("%s is neither a plain file nor the directory that it should be", path)
	case !ok || stat.Uid != h.Owner:
		return fmt.Errorf("%s does not belong to root: chown root %s", path, path)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others than root: chmod go-w %s", path, path)
	case kind == 0 && info.Mode().Perm()&0o100 == 0:
		return fmt.Errorf("%s is not executable: chmod u+x %s", path, path)
	}
	return nil
}

// runScripts runs what the mark names, in that order. Before a start the first failure ends it, since Proxmox then does
// not start the VM; in the other phases all get their turn.
func (h Host) runScripts(ctx context.Context, vmid int, phase string, names []string) error {
	var problems []error
	for _, name := range names {
		path, err := h.script(name)
		if err == nil {
			err = h.run(ctx, path, vmid, phase)
		}
		if err == nil {
			h.say("%s: %s: done", phase, name)
			continue
		}
		problems = append(problems, fmt.Errorf("%s: %s: %w", phase, name, err))
		if phase == PreStart {
			break
		}
	}
	return errors.Join(problems...)
}

// run runs one script, with nothing of our environment.
func (h Host) run(ctx context.Context, path string, vmid int, phase string) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, strconv.Itoa(vmid), phase)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = h.Log, h.Log
	// What the script started goes with it, and a pipe that such a process holds does not keep us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = h.Timeout
	err := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("it took longer than %s and was killed", h.Timeout)
	}
	return err
}
