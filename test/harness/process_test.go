// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestProcessHostname(t *testing.T) {
	t.Parallel()
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	p, err := startProcessOn("karpenter-0", "uname", log, exec.CommandContext(t.Context(), "uname", "-n"))
	if errors.Is(err, syscall.EPERM) {
		t.Skip("SKIPPED: UTS namespaces need root; make conformance runs in a user namespace")
	}
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	if got := strings.TrimSpace(Tail(log, 1)); got != "karpenter-0" {
		t.Errorf("the process sees the host name %q, want karpenter-0", got)
	}
	if after, err := os.Hostname(); err != nil || after != before {
		t.Errorf("the host name of this process is %q, want %q; error %v", after, before, err)
	}
}

func TestRunProcess(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	if err := RunProcess(t.Context(), "true", log, exec.CommandContext(t.Context(), "true")); err != nil {
		t.Error(err)
	}
	err := RunProcess(t.Context(), "sh", log, exec.CommandContext(t.Context(), "sh", "-c", "echo reason; exit 3"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "reason") {
		t.Errorf("error %v, want exit status 3 and the output", err)
	}
}

func TestControllerMetricsURLAfterRestart(t *testing.T) {
	t.Parallel()
	c, err := NewController(ControllerOptions{Binary: "true", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for range 2 {
		if err := c.StartProcess(); err != nil {
			t.Fatal(err)
		}
		<-c.Done()
		urls = append(urls, c.MetricsURL())
	}
	if urls[0] != urls[1] {
		t.Errorf("metrics moved from %s to %s, want one URL for the forwards of a pod", urls[0], urls[1])
	}
}
