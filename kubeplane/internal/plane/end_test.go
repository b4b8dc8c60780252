// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestKill(t *testing.T) {
	t.Parallel()
	r := up(t)
	r.signal(t, syscall.SIGKILL)
	r.expectNothingLeft(t)
}

func TestExitWithParent(t *testing.T) {
	t.Parallel()
	// The shell must stay the parent, so it may not exec the plane.
	r := launch(t, nil, []string{"sh", "-c", `"$@" & wait`, "sh"})
	r.awaitReady(t)
	if r.PIDs["kubeplane"] == r.cmd.Process.Pid {
		t.Fatal("the shell has become the plane")
	}
	r.signal(t, syscall.SIGKILL)
	r.expectNothingLeft(t)
	expectNoFile(t, r.Dir)
}

func TestExitWithStandardInput(t *testing.T) {
	t.Parallel()
	stdin, closing := io.Pipe()
	r := launch(t, stdin, nil)
	t.Cleanup(func() { _ = closing.Close() }) // the process ends only then
	r.awaitReady(t)
	if err := closing.Close(); err != nil {
		t.Fatal(err)
	}
	if code := r.expectEnd(t); code != 0 {
		t.Errorf("the exit code is %d; want 0", code)
	}
	r.expectNothingLeft(t)
}

func TestExitWithComponent(t *testing.T) {
	t.Parallel()
	r := up(t)
	if err := syscall.Kill(r.PIDs["kube-scheduler"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := r.expectEnd(t); code != 1 {
		t.Errorf("the exit code is %d; want 1", code)
	}
	r.expectNothingLeft(t)
	path := filepath.Join(r.Dir, "logs", "kube-scheduler.log")
	expectContains(t, r.stderr.String(), "kube-scheduler ended by itself (signal: killed); the end of "+path+":\n")
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	expectContains(t, r.stderr.String(), lines[len(lines)-1])
	expectNoFile(t, r.readyFile)
	if _, err := os.Stat(filepath.Join(r.Dir, "logs", "kube-apiserver.log")); err != nil {
		t.Errorf("the logs that would explain it are gone: %v", err)
	}
}

func TestUpComponentFails(t *testing.T) {
	t.Parallel()
	r := launch(t, nil, nil, "--runtime-config", "no/such=true")
	select {
	case <-r.done:
	case <-time.After(readyWithin):
		t.Fatal("kubeplane waits for an API server that has ended")
	}
	if code := r.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("the exit code is %d; want 1", code)
	}
	expectContains(t, r.stderr.String(), "kube-apiserver ended by itself (exit status 1)")
	expectContains(t, r.stderr.String(), "unknown api groups no") // its own words
}
