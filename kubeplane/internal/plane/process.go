// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// process is a component that runs: a child, of this same binary, under the component's name.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// startProcess starts c. The child dies with the OS THREAD that forked it (that is how Linux means Pdeathsig),
// so the caller must hold runtime.LockOSThread for as long as the child shall live.
// ended is called once, from another goroutine, when the child is gone for whatever reason.
func startProcess(c component, l layout, ended func(*process, error)) (*process, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this binary: %w", err)
	}
	log, err := os.OpenFile(l.log(c.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", c.name, err)
	}
	defer func() { _ = log.Close() }() // the child has its own copy
	p := &process{name: c.name, log: log.Name(), done: make(chan struct{})}
	p.cmd = &exec.Cmd{
		Path:   executable,
		Args:   append([]string{c.name}, c.args...),
		Env:    withoutEtcdSettings(os.Environ()),
		Dir:    l.path(),
		Stdout: log,
		Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGKILL,
			Setpgid:   true, // Ctrl-C is for us alone; we end the children in our own way
		},
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	go func() {
		err := p.cmd.Wait()
		close(p.done)
		ended(p, err)
	}()
	return p, nil
}

// withoutEtcdSettings drops ETCD_*: etcd takes each as a flag, and what a developer has set for etcdctl would bend ours.
func withoutEtcdSettings(environment []string) []string {
	var kept []string
	for _, e := range environment {
		if !strings.HasPrefix(e, "ETCD_") {
			kept = append(kept, e)
		}
	}
	return kept
}

// kill ends the process group at once: nothing of a plane is worth a long goodbye.
func (p *process) kill() error {
	err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// diedError reports that a component exited unexpectedly, with its last log lines.
type diedError struct {
	name  string
	cause error
	log   string
	tail  string
}

func (e *diedError) Error() string {
	how := "exit status 0"
	if e.cause != nil {
		how = e.cause.Error()
	}
	return fmt.Sprintf("%s ended by itself (%s); the end of %s:\n%s", e.name, how, e.log, e.tail)
}

func (e *diedError) Unwrap() error { return e.cause }

func isDeath(err error) bool {
	var died *diedError
	return errors.As(err, &died)
}

func (p *process) died(cause error) error {
	tail, err := tailOf(p.log, 20)
	if err != nil {
		tail = err.Error()
	}
	return &diedError{name: p.name, cause: cause, log: p.log, tail: tail}
}

// tailOf answers the last lines of a file; logs are read only at the end, and never whole.
func tailOf(file string, lines int) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("reading the log: %w", err)
	}
	defer func() { _ = f.Close() }()
	const most = 16 << 10
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return "", fmt.Errorf("reading the log: %w", err)
		}
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("reading the log: %w", err)
	}
	all := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))), nil
}
