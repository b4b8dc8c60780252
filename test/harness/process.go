// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// stopGracePeriod is how long a process may take to end after SIGTERM.
const stopGracePeriod = 15 * time.Second

// process is a child process that ends with this process and writes to a log file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; read after done
}

// startProcess runs a command. Linux ties the parent-death signal to the OS thread that
// forked, and Go ends idle threads, so one thread is locked as long as the child runs.
func startProcess(name, log string, cmd *exec.Cmd) (*process, error) {
	return startProcessOn("", name, log, cmd)
}

// startProcessOn runs a command that sees the given host name, unless it is empty. It needs the
// permission to create a UTS namespace, which root has in a user namespace, too.
func startProcessOn(hostname, name, log string, cmd *exec.Cmd) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening log of %s: %w", name, err)
	}
	cmd.Stderr = file
	if cmd.Stdout == nil {
		cmd.Stdout = file
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// The child has its own process group, so Ctrl-C reaches only this process, which ends the
	// children in order.
	cmd.SysProcAttr.Pdeathsig, cmd.SysProcAttr.Setpgid = syscall.SIGKILL, true
	p := &process{name: name, log: log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer file.Close()
		if hostname == "" {
			defer runtime.UnlockOSThread()
		} else if err := setHostname(hostname); err != nil {
			started <- err
			return // without unlocking: the thread ends with its namespace
		}
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// setHostname moves the calling thread to a new UTS namespace with the given host name.
func setHostname(name string) error {
	if err := syscall.Unshare(syscall.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("creating UTS namespace: %w", err)
	}
	if err := syscall.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("setting host name: %w", err)
	}
	return nil
}

// RunProcess runs a command that ends with this process, and returns when it has ended. Output
// that the command does not redirect is appended to the log. It returns an error if the
// command fails; if ctx ends first, it ends the command.
func RunProcess(ctx context.Context, name, log string, cmd *exec.Cmd) error {
	p, err := startProcess(name, log, cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.stop(stopGracePeriod)
		return fmt.Errorf("running %s: %w", name, ctx.Err())
	}
	if p.err != nil {
		return p.exitError()
	}
	return nil
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill sends SIGKILL and waits until the process has ended.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// stop sends SIGTERM, and SIGKILL if the process has not ended after the grace period.
func (p *process) stop(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.kill()
	}
}

func (p *process) signal(s syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(p.cmd.Process.Pid, s) // an error means that it has already ended
	}
}

// exitError describes how the process ended, with the end of its log.
func (p *process) exitError() error {
	how := "exit status 0"
	if exit, failed := errors.AsType[*exec.ExitError](p.err); failed {
		how = exit.String()
	}
	return fmt.Errorf("%s exited (%s); the end of %s:\n%s", p.name, how, p.log, Tail(p.log, 15))
}

// Tail returns the last lines of a file, for messages.
func Tail(path string, lines int) string {
	const maxSize = 256 << 10
	file, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > maxSize {
		if _, err := file.Seek(-maxSize, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return strings.TrimSpace(string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))))
}
