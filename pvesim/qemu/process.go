// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child process. On Linux it is killed when this process ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // of Wait; read after done
}

// startProcess runs a command. Linux ties the parent-death signal to the OS thread that forked, and Go ends idle
// threads, so one thread is locked as long as the child runs.
func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = childAttributes()
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	return p, nil
}

// kill ends the process and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.done
}

// directory is a temporary directory that is removed even if this process is killed: a shell waits for the end of the
// process and removes it then.
type directory struct {
	path    string
	alive   io.Closer // the pipe that the shell reads from
	cleaner *exec.Cmd
}

// cleanup removes the directory "$1" after the end of the input. The killed QEMU processes may still create files.
const cleanup = `trap '' INT TERM HUP; cat >/dev/null; rm -rf -- "$1" 2>/dev/null || { sleep 1; rm -rf -- "$1"; }`

func newDirectory(parent string) (*directory, error) {
	path, err := os.MkdirTemp(parent, "pvesim-")
	if err != nil {
		return nil, fmt.Errorf("creating directory of guests: %w", err)
	}
	d := &directory{path: path, cleaner: exec.CommandContext(context.Background(), "sh", "-c", cleanup, "sh", path)}
	// Its own session: signals to the process group of this process do not reach it.
	d.cleaner.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := d.cleaner.StdinPipe()
	if err == nil {
		d.alive = pipe
		err = d.cleaner.Start()
	}
	if err != nil {
		_ = os.RemoveAll(path) // it is empty
		return nil, fmt.Errorf("starting cleanup of %s: %w", path, err)
	}
	return d, nil
}

// remove removes the directory.
func (d *directory) remove() {
	_ = d.alive.Close()
	_ = d.cleaner.Wait() // rm reports what it could not remove
}
