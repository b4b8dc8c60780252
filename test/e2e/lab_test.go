// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestOwnProxmox runs a part of this suite as a user with a lab does: in a separate process,
// against a Proxmox that it knows only from the file in E2E_PROXMOX_CONFIG.
func TestOwnProxmox(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it tests the suite itself"))
	t.Run("8.4_guests_join", func(t *testing.T) {
		t.Parallel()
		// Different from the control plane's listen address, as in a real network.
		l := newOwnProxmox(t, "8.4", "127.0.0.2")
		out := l.run(t, "-test.run", "^(TestVMs|TestNodes|TestUnusableClusters)$", "-test.skip", "TestNodes/shared/(VM_deleted_|VM_stopped_|proxmox_cloud_init|pod_requirements|spread_over_hosts)")
		expectOutput(t, out, "--- PASS: TestVMs", "--- PASS: TestNodes/shared/scale_up_and_down",
			"TestUnusableClusters: needs the simulator", "TestNodes/shared/wrong_token: needs the simulator")
		l.expectUnchanged(t)
	})
	t.Run("9.2_guests_cannot_join", func(t *testing.T) {
		t.Parallel()
		l := newOwnProxmox(t, "9.2", "")
		l.runUntilKilled(t, "-test.run", "^TestVMs$")
		out := l.run(t, "-test.run", "^$")
		expectOutput(t, out, "deleted VM ")
		l.expectUnchanged(t)

		out = l.run(t, "-test.run", "^(TestVMs|TestNodes|TestControllerAway)$")
		expectOutput(t, out, "--- PASS: TestVMs", "TestControllerAway: needs VMs that reach this machine",
			"TestNodes/shared/VM_stopped_by_hand: needs VMs that reach this machine")
		l.expectUnchanged(t)
	})
}

// ownProxmox is a Proxmox in a separate process and a user's files about it.
type ownProxmox struct {
	server  *harness.PVESim
	dir     string
	records string
	before  harness.Holdings
}

func newOwnProxmox(t *testing.T, version, nodeAddress string) *ownProxmox {
	t.Helper()
	binaries(t)
	binary := os.Getenv("PVESIM")
	if binary == "" {
		t.Skip("SKIPPED: PVESIM must name the simulator's binary; make e2e builds it and sets it")
	}
	l := &ownProxmox{dir: t.TempDir()}
	l.records = filepath.Join(l.dir, "records")
	var err error
	l.server, err = harness.StartPVESim(t.Context(), binary, l.dir, version, "--hosts", "2", "--speed", "5", "--boot-time", "1s")
	must(t, err)
	t.Cleanup(l.server.Stop)
	l.before, err = l.server.API.Holdings(t.Context())
	must(t, err)
	l.write(t, "cloud-config.yaml", map[string]any{"clusters": []harness.Cluster{l.server.Cluster}})
	l.write(t, "e2e.yaml", map[string]any{
		"cloudConfig": "cloud-config.yaml", "template": map[string]string{"name": "ubuntu"}, "storage": "local-lvm",
		"vmids": map[string]int{"from": 30000, "to": 30999}, "nodeAddress": nodeAddress, "timeout": "2m",
	})
	return l
}

func (l *ownProxmox) write(t *testing.T, name string, content any) {
	t.Helper()
	text, err := yaml.Marshal(content)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(l.dir, name), text, 0o600))
}

// command returns a command that runs this test binary as make e2e would.
func (l *ownProxmox) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], append(args, "-test.v", "-test.timeout", "15m")...)
	cmd.Env = append(os.Environ(), "E2E_PROXMOX_CONFIG="+filepath.Join(l.dir, "e2e.yaml"), "E2E_STATE_DIR="+l.records, "E2E_NODE_ADDRESS=", "E2E_CLUSTER_ID=")
	return cmd
}

func (l *ownProxmox) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.command(t.Context(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("the suite ended with %v:\n%s", err, out)
	}
	return string(out)
}

// runUntilKilled kills the suite with SIGKILL when it has a VM.
func (l *ownProxmox) runUntilKilled(t *testing.T, args ...string) {
	t.Helper()
	cmd := l.command(t.Context(), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // its child processes hold its output for a moment
	must(t, cmd.Start())
	err := await(t.Context(), timeout(), func(ctx context.Context) error {
		guests, err := l.server.API.Guests(ctx)
		if err == nil && !slices.ContainsFunc(guests, func(g harness.Guest) bool { return strings.Contains(g.Notes(), `"cluster"`) }) {
			err = fmt.Errorf("no VM yet")
		}
		return err
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil {
		t.Fatalf("waiting for the suite to create a VM: %v:\n%s", err, out.String())
	}
	if records, err := filepath.Glob(filepath.Join(l.records, "*")); err != nil || len(records) != 1 {
		t.Errorf("the killed run left the records %q (%v), want one", records, err)
	}
}

// expectUnchanged checks that nothing leaked in Proxmox and that no record of a run remains.
func (l *ownProxmox) expectUnchanged(t *testing.T) {
	t.Helper()
	after, err := l.server.API.Holdings(t.Context())
	must(t, err)
	if left := l.before.Diff(after); len(left) > 0 {
		t.Errorf("the suite leaked %q", left)
	}
	if records, err := filepath.Glob(filepath.Join(l.records, "*")); err != nil || len(records) != 0 {
		t.Errorf("the suite left the records %q (%v)", records, err)
	}
}

func expectOutput(t *testing.T, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not contain %q:\n%s", want, out)
		}
	}
}
