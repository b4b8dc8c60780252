// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
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
		NewWithT(t).Expect(l.run(t, "-test.run", "^(TestNodes|TestDrift)$", "-test.skip", "spread_over_hosts")).To(And(
			ContainSubstring("--- PASS: TestNodes/shared/scale_up_and_down"), ContainSubstring("TestDrift: needs the simulator"),
			ContainSubstring("TestNodes/shared/proxmox_cloud_init: needs the simulator")))
		l.expectUnchanged(t)
	})
	t.Run("9.2_guests_cannot_join", func(t *testing.T) {
		t.Parallel()
		l := newOwnProxmox(t, "9.2", "")
		l.runUntilKilled(t, "-test.run", "^TestVMs$")
		NewWithT(t).Expect(l.run(t, "-test.run", "^$")).To(ContainSubstring("deleted VM "))
		l.expectUnchanged(t)

		NewWithT(t).Expect(l.run(t, "-test.run", "^(TestVMs|TestControllerAway)$")).To(And(
			ContainSubstring("--- PASS: TestVMs"), ContainSubstring("TestControllerAway: needs VMs that reach this machine")))
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
	for name, content := range map[string]any{
		"cloud-config.yaml": map[string]any{"clusters": []harness.Cluster{l.server.Cluster}},
		"e2e.yaml": map[string]any{
			"cloudConfig": "cloud-config.yaml", "template": map[string]string{"name": "ubuntu"}, "storage": "local-lvm",
			"vmids": map[string]int{"from": 30000, "to": 30999}, "nodeAddress": nodeAddress, "timeout": "2m",
		},
	} {
		text, err := yaml.Marshal(content)
		must(t, err)
		replaceFile(t, filepath.Join(l.dir, name), string(text))
	}
	return l
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
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), "%s", out)
	return string(out)
}

// runUntilKilled kills the suite with SIGKILL when it has a VM.
func (l *ownProxmox) runUntilKilled(t *testing.T, args ...string) {
	t.Helper()
	g, cmd := NewWithT(t), l.command(t.Context(), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // its child processes hold its output for a moment
	must(t, cmd.Start())
	defer func() { _ = cmd.Wait() }() // it was killed
	defer func() { _ = cmd.Process.Kill() }()
	g.Eventually(l.server.API.Guests).WithContext(t.Context()).WithTimeout(timeout()).WithPolling(pollInterval).
		Should(ContainElement(HaveField("Notes()", ContainSubstring(`"cluster"`))), out.String)
	g.Expect(filepath.Glob(filepath.Join(l.records, "*"))).To(HaveLen(1))
}

// expectUnchanged checks that nothing leaked in Proxmox and that no record of a run remains.
func (l *ownProxmox) expectUnchanged(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	after, err := l.server.API.Holdings(t.Context())
	must(t, err)
	g.Expect(l.before.Diff(after)).To(BeEmpty())
	g.Expect(filepath.Glob(filepath.Join(l.records, "*"))).To(BeEmpty())
}
