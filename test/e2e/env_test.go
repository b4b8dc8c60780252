// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	// simulated is the region of a simulated cluster.
	simulated = "home"
	pause     = 100 * time.Millisecond
	// labPause is for a Proxmox that has more to do than to answer us.
	labPause = time.Second
	// labGracePeriod suits real kubelets: they are heard every ten seconds.
	labGracePeriod = 50 * time.Second
)

// setup says how a world differs from the usual.
type setup struct {
	hosts int
	// version of Proxmox VE; the simulator's own default when empty.
	version string
	speed   float64
	gpus    int
	// scenario may change what is simulated.
	scenario func(*pvesim.Scenario)
	// pollInterval is a second when zero.
	pollInterval time.Duration
	gracePeriod  time.Duration
	// proxmox to share with another world; a new one when nil.
	proxmox *harness.Proxmox
	// fresh is a Proxmox as its installer leaves it.
	fresh bool
	// idle leaves the controller to the test.
	idle bool
	// featureGates of Karpenter: A=true,B=true.
	featureGates string
	args         []string
}

// world is a control plane, a Proxmox cluster and a controller.
type world struct {
	plane *harness.Plane
	// proxmox is nil in a lab: whatever needs it needs a simulator.
	proxmox    *harness.Proxmox
	controller *harness.Controller
	kube       client.WithWatch
	api        *harness.API
	// secrets are all values that must not show.
	secrets *harness.Secrets
	// logs of the controllers that ran here.
	logs []string
	// cluster is what tells VMs of this Kubernetes cluster from others'.
	cluster string
	region  string
	dir     string
}

// binaries skips the test, loudly, when it was not told where they are.
func binaries(t *testing.T) (kubeplane, controller string) {
	t.Helper()
	kubeplane, controller = os.Getenv("KUBEPLANE"), os.Getenv("CONTROLLER")
	if kubeplane == "" || controller == "" {
		t.Skip("SKIPPED: KUBEPLANE and CONTROLLER must name the binaries; make e2e builds them and sets both")
	}
	return kubeplane, controller
}

// newWorld brings a world up, and takes it down after the test.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	kubeplane, controller := binaries(t)
	w := &world{dir: t.TempDir(), proxmox: s.proxmox}
	ctx := t.Context()
	plane := harness.PlaneOptions{Binary: kubeplane, Dir: filepath.Join(w.dir, "kubernetes"), NodeMonitorGracePeriod: s.gracePeriod}
	options := harness.ControllerOptions{
		Binary: controller, Dir: filepath.Join(w.dir, "controller"), PollInterval: cmp.Or(s.pollInterval, time.Second), FeatureGates: s.featureGates,
		// What is secret shows at no level.
		Args: append([]string{"--log-level", "debug"}, s.args...),
	}
	if lab := suite.lab; lab != nil {
		plane.NodeAddress, plane.NodeMonitorGracePeriod = lab.NodeAddress, labGracePeriod
		w.api, w.region = lab.API, lab.Region
		options.Clusters, options.Args = []harness.Cluster{lab.Cluster}, append(options.Args, lab.Args()...)
	} else {
		if w.proxmox == nil {
			w.proxmox = newProxmox(t, s)
		}
		w.api, w.region = w.proxmox.API, simulated
		options.Clusters = []harness.Cluster{w.proxmox.Cluster(w.region)}
	}
	var err error
	w.plane, err = harness.StartPlane(ctx, plane)
	must(t, err)
	t.Cleanup(w.plane.Stop)
	w.kube, options.Kubeconfig = w.plane.Client, w.plane.Kubeconfig
	must(t, harness.InstallCRDs(ctx, w.kube))
	system := &corev1.Namespace{}
	must(t, w.kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system))
	w.cluster = string(system.UID)
	if suite.lab != nil {
		w.keepRecord(t)
	}
	w.controller, err = harness.NewController(options)
	must(t, err)
	t.Cleanup(w.controller.Stop)
	w.logs = []string{w.controller.Log()}
	w.watchSecrets(t)
	if !s.idle {
		must(t, w.controller.Start(ctx))
	}
	return w
}

// watchSecrets notes all secrets of a world, and looks at its end whether one shows.
func (w *world) watchSecrets(t *testing.T) {
	t.Helper()
	if suite.lab != nil {
		return // what others do in a lab is not ours to look through
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var err error
	w.secrets, err = harness.WatchSecrets(ctx, w.kube)
	must(t, err)
	w.secrets.Add("the token of the cloud config", w.proxmox.Cluster(w.region).TokenSecret)
	w.secrets.Add("the second token", harness.SecondTokenSecret)
	t.Cleanup(func() {
		w.noSecretShows(t)
		cancel()
	})
}

// noSecretShows looks through logs, metrics, all objects but Secrets, and Proxmox.
func (w *world) noSecretShows(t *testing.T) {
	t.Helper()
	// The test's own context may be over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	places := harness.Places{Plane: w.plane, Logs: w.logs, Proxmox: w.api}
	if w.controller.Running() {
		var err error
		places.Metrics, err = w.controller.Metrics(ctx)
		must(t, err)
	}
	found, err := w.secrets.Search(ctx, places)
	must(t, err)
	for _, line := range found {
		t.Error(line)
	}
}

// keepRecord notes that the world may leave something in the lab, and cleans up
// when its controller has ended.
func (w *world) keepRecord(t *testing.T) {
	t.Helper()
	record, err := harness.NewRecord(suite.records, w.cluster, suite.lab.Cluster.URLs[0])
	must(t, err)
	t.Cleanup(func() {
		// The test's own context is over.
		removed, err := suite.clean(context.WithoutCancel(t.Context()), w.cluster, os.Stdout)
		if err != nil {
			t.Errorf("%v; the next run tries again", err)
			must(t, record.Keep())
			return
		}
		if len(removed) > 0 && !t.Failed() {
			t.Errorf("the test left %s", strings.Join(removed, ", "))
		}
		must(t, record.Done())
	})
}

func newProxmox(t *testing.T, s setup) *harness.Proxmox {
	t.Helper()
	hosts, speed := s.hosts, s.speed
	if hosts == 0 {
		hosts = 3
	}
	if speed == 0 {
		speed = 5
	}
	p, err := harness.StartProxmox(t.Context(), harness.ProxmoxOptions{
		Hosts: hosts, Version: s.version, Speed: speed, GPUs: s.gpus, Fresh: s.fresh, Heartbeat: 2 * time.Second, Scenario: s.scenario,
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

// eventually polls until the condition gives no error. The failure tells the
// last one, and all that helps to understand it.
func (w *world) eventually(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	w.within(t, patience(), what, condition)
}

func (w *world) within(t *testing.T, limit time.Duration, what string, condition func(context.Context) error) {
	t.Helper()
	if err := await(t.Context(), limit, condition); err != nil {
		w.dump(t)
		t.Fatalf("waiting %s for %s: %v", limit, what, err)
	}
}

func await(ctx context.Context, limit time.Duration, condition func(context.Context) error) error {
	deadline, pause := time.Now().Add(limit), pause
	if suite.lab != nil {
		pause = labPause
	}
	for {
		err := condition(ctx)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// dump tells what there is to know about a failure.
func (w *world) dump(t *testing.T) {
	t.Helper()
	// The test's own context may be over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	t.Logf("controller log:\n%s", harness.Tail(w.controller.Log(), 60))
	claims := &karpv1.NodeClaimList{}
	if err := w.kube.List(ctx, claims); err == nil {
		for _, claim := range claims.Items {
			t.Logf("nodeclaim %s deleting=%t providerID=%s annotations=%v", claim.Name, !claim.DeletionTimestamp.IsZero(), claim.Status.ProviderID, claim.Annotations)
			for _, c := range claim.Status.Conditions {
				t.Logf("  %s=%s %s %s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
	}
	events := &corev1.EventList{}
	if err := w.kube.List(ctx, events); err == nil {
		slices.SortFunc(events.Items, func(a, b corev1.Event) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		for _, e := range events.Items[max(0, len(events.Items)-40):] {
			t.Logf("event %s %s/%s %s: %s", e.CreationTimestamp.Format(time.TimeOnly), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	guests, err := w.api.Guests(ctx)
	if err != nil {
		t.Logf("guests: %v", err)
	}
	for _, g := range guests {
		t.Logf("guest %d %s on %s %s lock=%v", g.VMID, g.Name, g.Host, g.Status, g.Config["lock"])
		if w.proxmox != nil {
			t.Logf("console:\n%s", indent(w.proxmox.Console(g.VMID)))
		}
	}
	t.Logf("tasks:\n%s", w.api.Tasks(ctx))
}

func indent(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return "    " + strings.Join(lines[max(0, len(lines)-15):], "\n    ")
}

// holdings are all that Proxmox holds; in a lab, all that it holds of this world:
// the rest is other people's, and theirs to change.
func (w *world) holdings(ctx context.Context) (harness.Holdings, error) {
	if suite.lab != nil {
		return w.api.Remains(ctx, w.cluster)
	}
	return w.api.Holdings(ctx)
}

// asBefore waits until neither side holds anything that it did not hold before.
func (w *world) asBefore(t *testing.T, before harness.Holdings) {
	t.Helper()
	w.eventually(t, "both sides to be as before", func(ctx context.Context) error {
		after, err := w.holdings(ctx)
		if err != nil {
			return err
		}
		left, err := harness.KubeLeftovers(ctx, w.kube)
		if err != nil {
			return err
		}
		if left = append(left, before.Leftovers(after)...); len(left) > 0 {
			return errors.New(strings.Join(left, "; "))
		}
		return nil
	})
}
