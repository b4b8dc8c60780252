// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestPodDeletedWhileStarting checks that no controller outlives its pod: it would hold the
// Lease for which the suites wait.
func TestPodDeletedWhileStarting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary, started := filepath.Join(dir, "controller"), filepath.Join(dir, "started")
	must(t, os.WriteFile(binary, []byte("#!/bin/sh\necho x >> "+started+"\nexec sleep 600\n"), 0o700))
	controller, err := harness.NewController(harness.ControllerOptions{Binary: binary, Dir: dir})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	p := &systemPod{controller: controller, done: make(chan struct{})}
	go p.run(ctx)
	for { // until the process runs
		if _, err := os.Stat(started); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-p.done
	if controller.Running() {
		t.Error("the controller still runs")
	}
	if starts, err := os.ReadFile(started); err != nil || string(starts) != "x\n" {
		t.Errorf("starts: %q, want one; error %v", starts, err)
	}
}
