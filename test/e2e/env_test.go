// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	// simulated is the region of a simulated cluster.
	simulated = "home"
	// speed is the factor of the simulator's time.
	speed        = 20
	pollInterval = 100 * time.Millisecond
	// labPollInterval reduces the load on a user's Proxmox.
	labPollInterval = time.Second
	// labGracePeriod suits real kubelets, which send a heartbeat every ten seconds.
	labGracePeriod = 50 * time.Second
)

// setup is how an environment differs from the default.
type setup struct {
	hosts int
	// version is the version of Proxmox VE. Empty means the simulator's default.
	version string
	// scenario may change the simulated cluster.
	scenario func(*pvesim.Scenario)
	// gracePeriod is how long a Node may miss heartbeats: by default longer than a busy machine delays them.
	gracePeriod time.Duration
	// fresh starts a Proxmox as its installer leaves it.
	fresh bool
	// idle does not start the controller.
	idle bool
	// featureGates are Karpenter's: A=true,B=true.
	featureGates string
	args         []string
	// durations are those that are no settings, see harness.ControllerOptions.
	durations string
}

// env is a control plane, a Proxmox cluster and a controller.
type env struct {
	// ctx ends with the test of the environment.
	ctx   context.Context
	plane *harness.Plane
	// proxmox is nil in a lab. Tests that use it need the simulator.
	proxmox    *harness.Proxmox
	controller *harness.Controller
	kube       client.WithWatch
	api        *harness.API
	// secrets are all values that must not leak.
	secrets *harness.Secrets
	// logs are the log files of the controllers that ran here.
	logs []string
	// cluster is the ID of the Kubernetes cluster, which identifies its VMs.
	cluster string
	region  string
	dir     string
}

// binaries returns the paths of the binaries. It skips the test if they are not set.
func binaries(t *testing.T) (kubeplane, controller string) {
	t.Helper()
	kubeplane, controller = os.Getenv("KUBEPLANE"), os.Getenv("CONTROLLER")
	if kubeplane == "" || controller == "" {
		t.Skip("SKIPPED: KUBEPLANE and CONTROLLER must name the binaries; make e2e builds them and sets both")
	}
	return kubeplane, controller
}

// newEnv starts an environment that ends with the test.
func newEnv(t *testing.T, s setup) *env {
	t.Helper()
	kubeplane, controller := binaries(t)
	ctx := t.Context()
	e := &env{ctx: ctx, dir: t.TempDir()}
	plane := harness.PlaneOptions{Binary: kubeplane, Dir: filepath.Join(e.dir, "kubernetes"), NodeMonitorGracePeriod: cmp.Or(s.gracePeriod, 2*time.Minute)}
	options := harness.ControllerOptions{
		Binary: controller, Dir: filepath.Join(e.dir, "controller"), PollInterval: time.Second, FeatureGates: s.featureGates, Durations: s.durations,
		// Secrets must not be logged at any level.
		Args: append([]string{"--log-level", "debug", "--batch-idle-duration", "100ms", "--batch-max-duration", "5s"}, s.args...),
	}
	if lab := suite.lab; lab != nil {
		plane.NodeAddress, plane.NodeMonitorGracePeriod = lab.NodeAddress, labGracePeriod
		e.api, e.region = lab.API, lab.Region
		options.Clusters, options.Args = []harness.Cluster{lab.Cluster}, append(options.Args, lab.Args()...)
	} else {
		e.proxmox = newProxmox(t, s)
		e.api, e.region = e.proxmox.API, simulated
		options.Clusters = []harness.Cluster{e.proxmox.Cluster(e.region)}
	}
	var err error
	e.plane, err = harness.StartPlane(ctx, plane)
	must(t, err)
	t.Cleanup(e.plane.Stop)
	e.kube, options.Kubeconfig = e.plane.Client, e.plane.Kubeconfig
	must(t, harness.InstallCRDs(ctx, e.kube))
	system := &corev1.Namespace{}
	must(t, e.kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	e.cluster = string(system.UID)
	if suite.lab != nil {
		e.recordRun(t)
	}
	e.controller, err = harness.NewController(options)
	must(t, err)
	t.Cleanup(e.controller.Stop)
	e.logs = []string{e.controller.Log()}
	e.watchSecrets(t)
	if !s.idle {
		must(t, e.controller.Start(ctx))
	}
	return e
}

// runShared runs tests that share an environment at the same time. With t.Parallel they would wait
// for the tests of all other environments. In a lab they run one after the other.
func runShared(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	t.Run("shared", func(t *testing.T) {
		var running sync.WaitGroup
		for name, test := range tests {
			if suite.lab != nil {
				t.Run(name, test)
				continue
			}
			running.Go(func() { t.Run(name, test) })
		}
		running.Wait()
	})
}

// watchSecrets collects all secrets of an environment and checks at its end that none leaked.
func (e *env) watchSecrets(t *testing.T) {
	t.Helper()
	if suite.lab != nil {
		return // a lab contains other users' data
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var err error
	e.secrets, err = harness.WatchSecrets(ctx, e.kube)
	must(t, err)
	e.secrets.Add("the token of the cloud config", e.proxmox.Cluster(e.region).TokenSecret)
	e.secrets.Add("the second token", secondTokenSecret)
	t.Cleanup(func() {
		e.expectNoSecrets(t)
		cancel()
	})
}

// expectNoSecrets searches logs, metrics, all objects except Secrets, and Proxmox for secrets.
func (e *env) expectNoSecrets(t *testing.T) {
	t.Helper()
	// The test's context may be canceled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	scope := harness.SearchScope{Plane: e.plane, Logs: e.logs, Proxmox: e.api}
	if e.controller.Running() {
		var err error
		scope.Metrics, err = e.controller.Metrics(ctx)
		must(t, err)
	}
	found, err := e.secrets.Search(ctx, scope)
	must(t, err)
	for _, line := range found {
		t.Error(line)
	}
}

// recordRun records that the environment may have VMs in the lab, and cleans up when its
// controller has ended.
func (e *env) recordRun(t *testing.T) {
	t.Helper()
	record, err := harness.NewRecord(suite.records, e.cluster, suite.lab.Cluster.URLs[0])
	must(t, err)
	t.Cleanup(func() {
		// The test's context is canceled.
		removed, err := suite.clean(context.WithoutCancel(t.Context()), e.cluster, os.Stdout)
		if err != nil {
			t.Errorf("%v; the next run retries", err)
			must(t, record.Release())
			return
		}
		if len(removed) > 0 && !t.Failed() {
			t.Errorf("the test leaked %s", strings.Join(removed, ", "))
		}
		must(t, record.Remove())
	})
}

func newProxmox(t *testing.T, s setup) *harness.Proxmox {
	t.Helper()
	p, err := harness.StartProxmox(t.Context(), harness.ProxmoxOptions{
		Hosts: cmp.Or(s.hosts, 3), Version: s.version, Speed: speed, Fresh: s.fresh, Scenario: s.scenario,
		Heartbeat: 2 * time.Second, InstallTime: 11 * time.Second, PodGraceLimit: time.Second,
	})
	must(t, err)
	t.Cleanup(p.Close)
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until the assertions of a condition hold. At the timeout it fails with the
// last one that did not, and dumps the state.
func (e *env) eventually(t *testing.T, what string, condition func(Gomega)) {
	t.Helper()
	e.within(t, timeout(), what, condition)
}

func (e *env) within(t *testing.T, limit time.Duration, what string, condition func(Gomega)) {
	t.Helper()
	interval := pollInterval
	if suite.lab != nil {
		interval = labPollInterval
	}
	NewWithT(t).Eventually(condition).WithContext(t.Context()).WithTimeout(limit).WithPolling(interval).Should(Succeed(), func() string {
		e.dump(t)
		return "waiting for " + what
	})
}

// dump logs the state of the environment.
func (e *env) dump(t *testing.T) {
	t.Helper()
	// The test's context may be canceled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	t.Logf("controller log:\n%s", harness.Tail(e.controller.Log(), 60))
	harness.Dump(ctx, e.kube, e.api, t.Logf, func(g harness.Guest) string {
		if e.proxmox == nil {
			return ""
		}
		lines := strings.Split(strings.TrimSpace(e.proxmox.Console(g.VMID)), "\n")
		return strings.Join(lines[max(0, len(lines)-15):], "\n")
	})
}

// holdings returns everything that Proxmox stores. In a lab it returns only what belongs to
// this environment, because other users may change the rest.
func (e *env) holdings(g Gomega) (all harness.Holdings) {
	var err error
	if suite.lab != nil {
		all, err = e.api.HoldingsOf(e.ctx, e.cluster)
	} else {
		all, err = e.api.Holdings(e.ctx)
	}
	g.Expect(err).NotTo(HaveOccurred())
	return all
}

// expectUnchanged waits until Kubernetes and Proxmox are as before.
func (e *env) expectUnchanged(t *testing.T, before harness.Holdings) {
	t.Helper()
	e.eventually(t, "Kubernetes and Proxmox to be as before", func(g Gomega) {
		g.Expect(harness.LeakedObjects(e.ctx, e.kube)).To(BeEmpty())
		g.Expect(before.Diff(e.holdings(g))).To(BeEmpty())
	})
}
