// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

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
