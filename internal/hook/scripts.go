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

// findScript returns the path of a script. It fails unless only root could have written the script, which runs as root.
func (h Host) findScript(name string) (string, error) {
	if !ownership.HookName.MatchString(name) {
		return "", fmt.Errorf("%q is not a valid script name: want letters, digits, dot, dash and underscore, beginning with a letter or digit", name)
	}
	dir := h.path(scriptDir)
	if err := h.checkTrusted(dir, os.ModeDir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if err := h.checkTrusted(path, 0); err != nil {
		return "", err
	}
	return path, nil
}

// checkTrusted returns an error if a user other than root could have created or could change the file.
func (h Host) checkTrusted(path string, kind os.FileMode) error {
	info, err := os.Lstat(path) // does not follow links
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode().Type() != kind:
		return fmt.Errorf("%s is neither a regular file nor the expected directory", path)
	case !ok || stat.Uid != h.Owner:
		return fmt.Errorf("%s is not owned by root: chown root %s", path, path)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s is writable by users other than root: chmod go-w %s", path, path)
	case kind == 0 && info.Mode().Perm()&0o100 == 0:
		return fmt.Errorf("%s is not executable: chmod u+x %s", path, path)
	}
	return nil
}

// runScripts runs the scripts in order. Before a start it ends with the first failure, since Proxmox then does not start the
// VM. In other phases it runs all of them.
func (h Host) runScripts(ctx context.Context, vmid int, phase string, names []string) error {
	var errs []error
	for _, name := range names {
		path, err := h.findScript(name)
		if err == nil {
			err = h.run(ctx, path, vmid, phase)
		}
		if err == nil {
			h.logf("%s: %s: done", phase, name)
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %s: %w", phase, name, err))
		if phase == preStart {
			break
		}
	}
	return errors.Join(errs...)
}

// run runs one script with a minimal environment.
func (h Host) run(ctx context.Context, path string, vmid int, phase string) error {
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, strconv.Itoa(vmid), phase)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = h.Log, h.Log
	// A timeout also kills the script's child processes. WaitDelay limits the wait for a child that keeps the output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = h.Timeout
	err := cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("the script took longer than %s and was killed", h.Timeout)
	}
	return err
}
