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

// TestOwnProxmox runs a part of this suite as somebody with a lab does: in a process
// of its own, against a Proxmox that it knows from the file in E2E_PROXMOX_CONFIG
// alone.
func TestOwnProxmox(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it is about the suite itself"))
	t.Run("8.4, with guests that join", func(t *testing.T) {
		t.Parallel()
		// Not the address that the control plane listens on, as in a real network.
		l := newOwnProxmox(t, "8.4", "127.0.0.2")
		out := l.run(t, "-test.run", "^(TestVMs|TestNodes|TestUnusableClusters)$", "-test.skip", "TestNodes/shared/(a_VM_|a_node_is_|pods_are_)")
		says(t, out, "--- PASS: TestVMs", "--- PASS: TestNodes/shared/pending_pods_become_nodes_and_go_again",
			"TestUnusableClusters: needs the simulator", "TestNodes/shared/a_node_with_a_wrong_token_does_not_join: needs the simulator")
		l.asBefore(t)
	})
	t.Run("9.2, with guests that cannot join", func(t *testing.T) {
		t.Parallel()
		l := newOwnProxmox(t, "9.2", "")
		l.runUntilKilled(t, "-test.run", "^TestVMs$")
		out := l.run(t, "-test.run", "^$")
		says(t, out, "removed VM ")
		l.asBefore(t)

		out = l.run(t, "-test.run", "^(TestVMs|TestNodes|TestControllerAway)$")
		says(t, out, "--- PASS: TestVMs", "TestControllerAway: needs VMs that reach this machine",
			"TestNodes/shared/a_VM_that_was_stopped_is_started_again: needs VMs that reach this machine")
		l.asBefore(t)
	})
}

// ownProxmox is a Proxmox in a process of its own, and a user's files about it.
type ownProxmox struct {
	server  *harness.Server
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
	l.server, err = harness.StartServer(t.Context(), binary, l.dir, version, "--hosts", "2", "--speed", "5", "--boot-time", "1s")
	must(t, err)
	t.Cleanup(l.server.Stop)
	l.before, err = l.server.API.Holdings(t.Context())
	must(t, err)
	l.write(t, "cloud-config.yaml", map[string]any{"clusters": []harness.Cluster{l.server.Cluster}})
	l.write(t, "e2e.yaml", map[string]any{
		"cloudConfig": "cloud-config.yaml", "template": map[string]string{"name": "ubuntu"}, "storage": "local-lvm",
		"vmids": map[string]int{"from": 30000, "to": 30999}, "nodeAddress": nodeAddress, "patience": "2m",
	})
	return l
}

func (l *ownProxmox) write(t *testing.T, name string, content any) {
	t.Helper()
	text, err := yaml.Marshal(content)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(l.dir, name), text, 0o600))
}

// command is this test binary, as make e2e would call it.
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

// runUntilKilled ends the suite as kill -9 does, when it has a VM.
func (l *ownProxmox) runUntilKilled(t *testing.T, args ...string) {
	t.Helper()
	cmd := l.command(t.Context(), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // what it started holds its output for a moment
	must(t, cmd.Start())
	err := await(t.Context(), patience(), func(ctx context.Context) error {
		guests, err := l.server.API.Guests(ctx)
		if err == nil && !slices.ContainsFunc(guests, func(g harness.Guest) bool { return strings.Contains(g.Notes(), `"cluster"`) }) {
			err = fmt.Errorf("there is no VM yet")
		}
		return err
	})
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil {
		t.Fatalf("waiting for the suite to make a VM: %v:\n%s", err, out.String())
	}
	if records, err := filepath.Glob(filepath.Join(l.records, "*")); err != nil || len(records) != 1 {
		t.Errorf("the killed run left the records %q (%v), want one", records, err)
	}
}

// asBefore: nothing is left in Proxmox, and nothing to be cleaned up is recorded.
func (l *ownProxmox) asBefore(t *testing.T) {
	t.Helper()
	after, err := l.server.API.Holdings(t.Context())
	must(t, err)
	if left := l.before.Leftovers(after); len(left) > 0 {
		t.Errorf("the suite left %q", left)
	}
	if records, err := filepath.Glob(filepath.Join(l.records, "*")); err != nil || len(records) != 0 {
		t.Errorf("the suite left the records %q (%v)", records, err)
	}
}

func says(t *testing.T, out string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("the suite did not say %q:\n%s", want, out)
		}
	}
}
