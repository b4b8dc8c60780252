// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	// release is the name that the suites expect of Karpenter's Deployment and of the label
	// of its pods, and leaseName that of its Lease.
	release   = "karpenter"
	leaseName = "karpenter-leader-election"
	// specTimeout ends a spec that hangs. The longest are those of the performance suite.
	specTimeout = 90 * time.Minute
	// leakTimeout is how long the controller may take to delete what a spec created, after
	// the suite has seen that the NodeClaims are gone.
	leakTimeout = 2 * time.Minute
)

// smallNodePool is the NodePool for specs that count nodes of two CPUs. The suite selects these
// sizes itself for kwok only.
//
//go:embed nodepool.yaml
var smallNodePool []byte

// worldOptions are paths.
type worldOptions struct {
	Dir, Kubeplane, Controller, Helm, Chart string
	// Core is the directory of Karpenter core's module.
	Core string
	// Large is a Proxmox cluster for thousands of pods.
	Large bool
}

// proxmoxOptions returns a cluster that is large enough for each spec.
func (o worldOptions) proxmoxOptions() harness.ProxmoxOptions {
	// A spec for topology spread constraints needs all its Nodes before the first one is ready.
	hosts, cores, memory, networkTime := 6, 64, 512*pvesim.GiB, 3*time.Second
	if o.Large {
		hosts, cores, memory, networkTime = 16, 768, 6*pvesim.TiB, 0
	}
	return harness.ProxmoxOptions{
		Hosts: hosts, Version: "9.2", BootTime: 3 * time.Second, NetworkTime: networkTime, PodGraceLimit: time.Hour,
		Scenario: func(s *pvesim.Scenario) {
			s.Hosts[hosts-1].Arch = "aarch64" // some specs need two architectures
			for i := range s.Hosts {
				s.Hosts[i].Cores, s.Hosts[i].Memory = cores, memory
			}
			for i := range s.Storages {
				s.Storages[i].Size = 8 * pvesim.TiB
			}
		},
	}
}

// world is a control plane, a simulated Proxmox cluster, and the controller as a pod.
type world struct {
	worldOptions
	plane   *harness.Plane
	proxmox *harness.Proxmox
	node    *systemNode
	// before is what Proxmox stores between specs.
	before harness.Holdings
}

func newWorld(ctx context.Context, o worldOptions) (*world, error) {
	w := &world{worldOptions: o}
	for _, start := range []func(context.Context) error{
		w.startNetwork, w.startPlane, w.startProxmox, w.startScheduler, w.startNode, w.installChart, w.waitForController,
	} {
		if err := start(ctx); err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

// startNetwork makes loopback and the pods' addresses reachable. A new network namespace has
// nothing.
func (w *world) startNetwork(ctx context.Context) error {
	for _, args := range []string{"link set lo up", "route add local " + podNetwork + " dev lo"} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("starting network: ip %s: %w\n%s", args, err, out)
		}
	}
	return nil
}

func (w *world) startPlane(ctx context.Context) (err error) {
	if w.plane, err = harness.StartPlane(ctx, harness.PlaneOptions{Binary: w.Kubeplane, Dir: filepath.Join(w.Dir, "kubernetes")}); err != nil {
		return err
	}
	return harness.InstallCRDs(ctx, w.plane.Client)
}

// startProxmox starts the cluster, and creates the objects that the suites' NodeClass refers to.
func (w *world) startProxmox(ctx context.Context) (err error) {
	if w.proxmox, err = harness.StartProxmox(ctx, w.proxmoxOptions()); err != nil {
		return err
	}
	kit, err := harness.NewKit("conformance", w.plane.Server)
	if err != nil {
		return err
	}
	for _, object := range []client.Object{kit.Templates, kit.Values, kit.Template} {
		if err := w.plane.Client.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %T: %w", object, err)
		}
	}
	kit.Class.Name = "default"
	class, err := yaml.Marshal(kit.Class)
	if err != nil {
		return fmt.Errorf("encoding NodeClass: %w", err)
	}
	types, err := typesWithSpot()
	return errors.Join(err, os.WriteFile(w.classFile(), class, 0o600), os.WriteFile(w.poolFile(), smallNodePool, 0o600), os.WriteFile(w.typesFile(), types, 0o600))
}

// typesWithSpot returns a file with the default instance types, each as on-demand and as spot:
// some specs need spot capacity.
func typesWithSpot() ([]byte, error) {
	types := instancetype.DefaultCatalog().Types()
	for _, t := range types {
		t.Name += "-spot"
		t.Spot = true
		types = append(types, t)
	}
	catalog, err := instancetype.NewCatalog(types)
	if err != nil {
		return nil, err
	}
	return catalog.Encode()
}

func (w *world) classFile() string { return filepath.Join(w.Dir, "nodeclass.yaml") }
func (w *world) typesFile() string { return filepath.Join(w.Dir, "instance-types.json") }
func (w *world) poolFile() string  { return filepath.Join(w.Dir, "nodepool.yaml") }

// startNode starts the system node, which runs the pod of the chart's Deployment.
func (w *world) startNode(ctx context.Context) (err error) {
	w.node, err = startSystemNode(ctx, w.plane, filepath.Join(w.Dir, "node"), w.Controller)
	return err
}

func (w *world) installChart(ctx context.Context) error {
	settings := map[string]any{
		// Core runs its suites with these.
		"featureGates":      map[string]any{"nodeRepair": true, "capacityBuffer": true, "staticCapacity": true},
		"orphanGracePeriod": "1m", // the suites wait a few minutes for it
	}
	if !w.Large { // figures are those of the default types
		settings["instanceTypesFile"], settings["vmSizePolicy"] = w.typesFile(), "Exact"
	}
	return w.plane.InstallChart(ctx, w.Helm, w.Chart, release, map[string]any{
		"fullnameOverride":   release,
		"bootDataSecrets":    map[string]any{metav1.NamespaceSystem: []string{"conformance-templates", "conformance-values"}},
		"config":             map[string]any{"clusters": []harness.Cluster{w.proxmox.Cluster("simulated")}},
		"leaderElectionName": leaseName,
		"settings":           settings,
		"tolerations":        []any{map[string]any{"operator": "Exists"}},
	})
}

// waitForController waits until the controller runs, and records what Proxmox stores then.
func (w *world) waitForController(ctx context.Context) (err error) {
	if err := w.node.waitForController(ctx); err != nil {
		return err
	}
	w.before, err = w.proxmox.API.Holdings(ctx)
	return err
}

// run runs one spec. It returns an error if the world is unusable, not if the spec fails.
func (w *world) run(ctx context.Context, request specRequest) (Result, error) {
	result := Result{Spec: request.Spec}
	if err := errors.Join(os.RemoveAll(request.Dir), os.MkdirAll(request.Dir, 0o700)); err != nil {
		return result, fmt.Errorf("creating directory of spec: %w", err)
	}
	stopMetrics, err := w.serveMetrics(ctx, request.Spec)
	if err != nil {
		return result, err
	}
	defer stopMetrics()
	report := filepath.Join(request.Dir, "report.json")
	args := append(request.Spec.focus(),
		"--ginkgo.json-report="+report, "--ginkgo.vv", "--ginkgo.no-color", "--ginkgo.timeout="+specTimeout.String(), "--test.timeout=0",
		"--default-nodeclass="+w.classFile(), "--repair-condition=ProxmoxGuestUnhealthy=True", "--reboot-condition=ProxmoxRebootRequired=True")
	if request.Spec.File == "capacitybuffer_test.go" {
		args = append(args, "--default-nodepool="+w.poolFile())
	}
	cmd := exec.Command(request.Binary, args...)
	cmd.Dir = request.Dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.plane.Kubeconfig, "OUTPUT_DIR="+request.Dir)
	runErr := harness.RunProcess(ctx, "suite", filepath.Join(request.Dir, "output.log"), cmd)
	w.judge(&result, report, runErr)
	if result.passed() {
		result.Problem = w.awaitNoLeaks(ctx)
	}
	result.Phases, err = readPhases(request.Dir)
	return result, err
}

// judge reads the outcome of a spec from the report of its process.
func (w *world) judge(result *Result, file string, runErr error) {
	report, err := readReport(file)
	if err != nil {
		result.Problem = errors.Join(err, runErr).Error()
		return
	}
	for _, r := range report.SpecReports {
		if result.Spec.matches(r) {
			result.Report = r
		} else if r.State.Is(types.SpecStateFailureStates) {
			result.Problem = r.FailureMessage() // of the suite's set-up
		}
	}
	switch {
	case result.Report.State == types.SpecStatePassed && runErr == nil:
	case result.Report.State == types.SpecStateSkipped:
		result.Skipped, result.Problem = true, "skipped: "+result.Report.FailureMessage()
	case result.Report.FailureMessage() != "":
		result.Problem = result.Report.FailureMessage()
	case result.Problem == "":
		result.Problem = fmt.Sprintf("the spec is %s: %v", result.Report.State, runErr)
	}
}

// awaitNoLeaks waits until Proxmox stores what it stored before the spec, and returns the
// difference if it does not.
func (w *world) awaitNoLeaks(ctx context.Context) string {
	deadline := time.Now().Add(leakTimeout)
	for {
		after, err := w.proxmox.API.Holdings(ctx)
		if err != nil {
			return err.Error()
		}
		leaks := w.before.Diff(after)
		if len(leaks) == 0 {
			return ""
		}
		if time.Now().After(deadline) {
			return "Proxmox differs from before the spec:\n" + strings.Join(leaks, "\n")
		}
		select {
		case <-ctx.Done():
			return ctx.Err().Error()
		case <-time.After(time.Second):
		}
	}
}

// serveMetrics serves the controller's metrics on port 8080 of its pod for the performance
// suite. The other suites must not find the port in use, because some specs listen on it.
func (w *world) serveMetrics(ctx context.Context, spec Spec) (stop func(), err error) {
	if spec.Suite != performanceSuite {
		return func() {}, nil
	}
	return w.node.serveMetrics(ctx)
}

// close ends everything in reverse order.
func (w *world) close() {
	if w.node != nil {
		w.node.close()
	}
	if w.proxmox != nil {
		_ = w.proxmox.WriteRequests(filepath.Join(w.Dir, "proxmox-requests.log")) // the log is optional
		w.proxmox.Close()
	}
	if w.plane != nil {
		w.plane.Stop()
	}
}

// startScheduler starts the kube-scheduler with default topology spread constraints that the
// suites need, and the pod by which they find it.
func (w *world) startScheduler(ctx context.Context) error {
	content, err := os.ReadFile(filepath.Join(w.Core, "test/suites/regression/testdata/kube-scheduler-config.yaml"))
	if err != nil {
		return fmt.Errorf("reading the suites' scheduler configuration: %w", err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(content, &config); err != nil {
		return fmt.Errorf("reading the suites' scheduler configuration: %w", err)
	}
	profiles, _ := config["profiles"].([]any)
	if len(profiles) != 2 {
		return fmt.Errorf("reading the suites' scheduler configuration: found %d profiles, want 2", len(profiles))
	}
	config["profiles"] = profiles[1:] // the control plane's scheduler has the first
	config["clientConnection"] = map[string]any{"kubeconfig": w.plane.Kubeconfig}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	if content, err = yaml.Marshal(config); err != nil {
		return fmt.Errorf("encoding scheduler configuration: %w", err)
	}
	file := filepath.Join(w.Dir, "kube-scheduler.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return fmt.Errorf("writing scheduler configuration: %w", err)
	}
	if err := w.plane.StartScheduler(file); err != nil {
		return err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-scheduler", Labels: map[string]string{"component": "kube-scheduler"}},
		Spec: corev1.PodSpec{NodeName: systemNodeName, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{
			Name: "kube-scheduler", Image: "kube-scheduler",
			Command: []string{"kube-scheduler", "--config=/etc/kubernetes/karpenter-scheduler-config/kube-scheduler-config.yaml"},
		}}},
	}
	if err := w.plane.Client.Create(ctx, pod); err != nil {
		return fmt.Errorf("creating pod of kube-scheduler: %w", err)
	}
	return nil
}
