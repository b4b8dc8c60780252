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
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// suite is what the tests of a process share: which Proxmox they run against, and
// what of them could not be run there. Go gives tests no other place for it.
var suite run

type run struct {
	// lab is a Proxmox of somebody's own; nil means simulators.
	lab *harness.Lab
	// records is the directory with the records of runs against labs.
	records string

	mu     sync.Mutex
	notRun []string
}

func TestMain(m *testing.M) {
	flag.Parse()
	// More tests at once than there are CPUs: they mostly wait.
	parallel := 8
	if config := os.Getenv("E2E_PROXMOX_CONFIG"); config != "" {
		if err := suite.enter(context.Background(), config, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			os.Exit(1)
		}
		// A lab has room for a few VMs only.
		parallel = 1
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			panic(err) // the testing package has had this flag for ever
		}
	}
	code := m.Run()
	suite.report(os.Stdout)
	os.Exit(code)
}

// enter opens the lab and cleans up after runs that could not do it themselves.
func (r *run) enter(ctx context.Context, config string, out io.Writer) error {
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
			return fmt.Errorf("finding a place for the records of runs: set E2E_STATE_DIR, %w", err)
		}
		r.records = filepath.Join(cache, "karpenter-provider-proxmox-e2e")
	}
	fmt.Fprintf(out, "Proxmox VE %s at %s, region %s, hosts %v\n", lab.Version, lab.Cluster.URLs[0], lab.Region, lab.Hosts)
	if cluster := os.Getenv("E2E_CLUSTER_ID"); cluster != "" {
		if _, err := r.clean(ctx, cluster, out); err != nil {
			return err
		}
	}
	abandoned, err := harness.Abandoned(r.records, lab.Cluster.URLs[0])
	if err != nil {
		return err
	}
	for _, record := range abandoned {
		if _, err := r.clean(ctx, record.Cluster, out); err != nil {
			return err
		}
		if err := record.Done(); err != nil {
			return err
		}
	}
	return nil
}

// clean removes what a Kubernetes cluster left in the lab.
func (r *run) clean(ctx context.Context, cluster string, out io.Writer) (removed []string, err error) {
	removed, err = r.lab.API.Clean(ctx, cluster)
	for _, what := range removed {
		fmt.Fprintf(out, "removed %s, left by Kubernetes cluster %s\n", what, cluster)
	}
	if err != nil {
		return removed, fmt.Errorf("cleaning up after Kubernetes cluster %s, %w", cluster, err)
	}
	return removed, nil
}

// report tells, in one place, which tests the lab did not allow.
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

// patience is for what takes seconds on an idle machine; a real guest takes minutes
// to boot.
func patience() time.Duration {
	if suite.lab != nil {
		return suite.lab.Patience.Duration
	}
	return 90 * time.Second
}

// need is something that not every Proxmox has.
type need struct {
	what string
	met  func(*harness.Lab) bool
}

// The needs of tests.
func simulator(why string) need {
	return need{"the simulator: " + why, func(*harness.Lab) bool { return false }}
}

func guestsThatJoin() need {
	return need{"VMs that reach this machine: set nodeAddress", func(l *harness.Lab) bool { return l.NodeAddress != "" }}
}

func room(vms int) need {
	return need{fmt.Sprintf("room for %d VMs at once: set maxVMs", vms), func(l *harness.Lab) bool { return l.MaxVMs >= vms }}
}

func hosts(n int) need {
	return need{fmt.Sprintf("the template on %d hosts that are up", n), func(l *harness.Lab) bool { return len(l.Hosts) >= n }}
}

// needs ends a test, and says why, where the Proxmox at hand lacks something. A
// simulator lacks nothing.
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
