// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// suite is the state shared by all tests of the process: the Proxmox that they run against and
// the tests that it did not allow. TestMain cannot pass it otherwise.
var suite run

type run struct {
	// lab is a user's own Proxmox; nil means simulators.
	lab *harness.Lab
	// records is the directory of the records of runs against labs.
	records string

	mu     sync.Mutex
	notRun []string
}

// shortRun are the tests of "go test -short". They show that a release can be installed, and the
// life of a Node from the pending pod to the deleted VM, with a crash of the controller.
const shortRun = "^(TestManifestInstall|TestGettingStarted)$"

func TestMain(m *testing.M) {
	flag.Parse()
	// More tests in parallel than CPUs: they mostly wait.
	defaults := map[string]string{"test.parallel": "8"}
	if testing.Short() {
		defaults["test.run"] = shortRun
	}
	if config := os.Getenv("E2E_PROXMOX_CONFIG"); config != "" {
		if err := suite.openLab(context.Background(), config, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
		// A lab has capacity for a few VMs only.
		defaults["test.parallel"] = "1"
	}
	flag.Visit(func(f *flag.Flag) { delete(defaults, f.Name) })
	for name, value := range defaults {
		if err := flag.Set(name, value); err != nil {
			panic(err) // the flag always exists
		}
	}
	code := m.Run()
	suite.report(os.Stdout)
	os.Exit(code)
}

// openLab opens the lab and cleans up after runs that were killed.
func (r *run) openLab(ctx context.Context, config string, out io.Writer) error {
	lab, err := harness.LoadLab(config)
	if err != nil {
		return err
	}
	if err := lab.Open(ctx); err != nil {
		return err
	}
	r.lab, r.records = lab, os.Getenv("E2E_STATE_DIR")
	if r.records == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("finding a directory for records of runs: set E2E_STATE_DIR: %w", err)
		}
		r.records = filepath.Join(cache, "karpenter-provider-proxmox-e2e")
	}
	fmt.Fprintf(out, "Proxmox VE %s at %s, region %s, hosts %v\n", lab.Version, lab.Cluster.URLs[0], lab.Region, lab.Hosts)
	if cluster := os.Getenv("E2E_CLUSTER_ID"); cluster != "" {
		if _, err := r.clean(ctx, cluster, out); err != nil {
			return err
		}
	}
	stale, err := harness.StaleRecords(r.records, lab.Cluster.URLs[0])
	if err != nil {
		return err
	}
	for _, record := range stale {
		if _, err := r.clean(ctx, record.Cluster, out); err != nil {
			return err
		}
		if err := record.Remove(); err != nil {
			return err
		}
	}
	return nil
}

// clean deletes everything of a Kubernetes cluster in the lab.
func (r *run) clean(ctx context.Context, cluster string, out io.Writer) (removed []string, err error) {
	removed, err = r.lab.API.Clean(ctx, cluster)
	for _, what := range removed {
		fmt.Fprintf(out, "deleted %s of Kubernetes cluster %s\n", what, cluster)
	}
	if err != nil {
		return removed, fmt.Errorf("cleaning up after Kubernetes cluster %s: %w", cluster, err)
	}
	return removed, nil
}

// report lists the tests that the lab did not allow.
func (r *run) report(out io.Writer) {
	if r.lab == nil || len(r.notRun) == 0 {
		return
	}
	fmt.Fprintf(out, "\nnot run against Proxmox VE %s at %s:\n", r.lab.Version, r.lab.Cluster.URLs[0])
	slices.Sort(r.notRun)
	for _, line := range r.notRun {
		fmt.Fprintln(out, "  "+line)
	}
}

// timeout is for operations that take seconds on an idle machine. A real guest takes minutes
// to boot.
func timeout() time.Duration {
	if suite.lab != nil {
		return suite.lab.Timeout.Duration
	}
	return 4 * time.Minute // a busy machine needs several times as long as an idle one
}

// need is a property that not every Proxmox has.
type need struct {
	what string
	met  func(*harness.Lab) bool
}

// simulator is the need of tests that run only against the simulator.
func simulator(why string) need {
	return need{"the simulator: " + why, func(*harness.Lab) bool { return false }}
}

func guestsThatJoin() need {
	return need{"VMs that reach this machine: set nodeAddress", func(l *harness.Lab) bool { return l.NodeAddress != "" }}
}

func capacity(vms int) need {
	return need{fmt.Sprintf("capacity for %d VMs: set maxVMs", vms), func(l *harness.Lab) bool { return l.MaxVMs >= vms }}
}

func hosts(n int) need {
	return need{fmt.Sprintf("the template on %d online hosts", n), func(l *harness.Lab) bool { return len(l.Hosts) >= n }}
}

// needs skips the test with a reason if the lab does not meet a need. A simulator meets all.
func needs(t *testing.T, wants ...need) {
	t.Helper()
	for _, want := range wants {
		if suite.lab == nil || want.met(suite.lab) {
			continue
		}
		suite.mu.Lock()
		suite.notRun = append(suite.notRun, fmt.Sprintf("%s: needs %s", t.Name(), want.what))
		suite.mu.Unlock()
		t.Skip("not run: needs " + want.what)
	}
}

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

// ownProxmox is a Proxmox and a user's files about it.
type ownProxmox struct {
	server  *harness.Proxmox
	dir     string
	records string
	before  harness.Holdings
}

func newOwnProxmox(t *testing.T, version, nodeAddress string) *ownProxmox {
	t.Helper()
	binaries(t)
	l := &ownProxmox{dir: t.TempDir()}
	l.records = filepath.Join(l.dir, "records")
	var err error
	l.server, err = harness.StartProxmox(t.Context(), harness.ProxmoxOptions{Hosts: 2, Version: version, Speed: 5, BootTime: time.Second})
	must(t, err)
	t.Cleanup(l.server.Close)
	l.before, err = l.server.API.Holdings(t.Context())
	must(t, err)
	for name, content := range map[string]any{
		"cloud-config.yaml": map[string]any{"clusters": []harness.Cluster{l.server.Cluster("simulated")}},
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
