// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	fleetmap "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	fewNodes, manyNodes = 100, 1000
	// burstNodes are launched in addition.
	burstNodes = 100
	// settleTime is how long the controller works on what its start causes.
	settleTime = 3 * time.Minute
	// idleTime includes one reconcile of each object whose reconciles are repeated every
	// five minutes. Burst figures are of at least burstTime.
	idleTime, burstTime = 5 * time.Minute, time.Minute
	// fleetTimeout is how long all nodes may take. The machine runs the control plane, the
	// simulator and the nodes too.
	fleetTimeout = 30 * time.Minute
)

// TestScale measures the controller binary idle without nodes, and with 100 and 1000 nodes, idle
// and while 100 more are launched. The cost must not grow faster than the number of nodes.
func TestScale(t *testing.T) {
	if !long() {
		t.Skip("SKIPPED: it takes 30 minutes; run make bench")
	}
	if os.Getenv("KUBEPLANE") == "" || os.Getenv("CONTROLLER") == "" {
		t.Skip("SKIPPED: KUBEPLANE and CONTROLLER must name the binaries; make bench builds them and sets both")
	}
	checkIdle := func(nodes int, of map[string]figures, names ...string) {
		for _, name := range names {
			checkCount(t, fmt.Sprintf("%s, idle, %d nodes", idleUnits[name].label, nodes), of["idle"][name]*idleUnits[name].factor)
		}
	}
	names := []string{"calls", "reconciles", "core reconciles", "CPU", "memory", "goroutines"}
	checkIdle(0, measureScale(t, 0), "calls", "goroutines")
	few := measureScale(t, fewNodes)
	checkIdle(fewNodes, few, append(names, "workers")...)
	many := measureScale(t, manyNodes)
	checkIdle(manyNodes, many, names...)
	for _, name := range names {
		for _, phase := range []string{"idle", "burst"} {
			checkCount(t, fmt.Sprintf("%s of 1000 nodes over 100, %s", name, phase), many[phase][name]/few[phase][name])
		}
	}
}

// idleUnits are the figures of an idle controller with their units.
var idleUnits = map[string]struct {
	label  string
	factor float64
}{
	"calls": {"calls per minute", 1 / idleTime.Minutes()}, "reconciles": {"reconciles per minute", 1 / idleTime.Minutes()},
	"core reconciles": {"reconciles of Karpenter core per minute", 1 / idleTime.Minutes()},
	"CPU":             {"CPU, % of a core", 100 / idleTime.Seconds()}, "memory": {"memory, MiB", 1}, "goroutines": {"goroutines", 1},
	"workers": {"goroutines that wait for an object to reconcile", 1},
}

// scaled is a control plane, a Proxmox cluster and a controller. The test plays the kubelets.
type scaled struct {
	t          *testing.T
	plane      *harness.Plane
	proxmox    *harness.Proxmox
	controller *harness.Controller
	class      *v1alpha1.ProxmoxNodeClass
	claims     int
}

// figures are what the controller uses: CPU in seconds, memory in MiB.
type figures map[string]float64

// measureScale returns the figures of the phases with that many nodes.
func measureScale(t *testing.T, nodes int) map[string]figures {
	t.Helper()
	s := startScaled(t, false)
	s.launch(nodes)
	// Many reconciles are repeated after a certain time. Without a restart, that time would
	// depend on how long the launches took.
	s.controller.Stop()
	testenv.Must(t, s.controller.Start(t.Context()))
	// The metric exists as soon as the controller is the leader and its caches are filled.
	s.wait(func(ctx context.Context) (bool, error) {
		_, err := s.controller.Metric(ctx, "controller_runtime_max_concurrent_reconciles", nil)
		return err == nil, nil
	})
	s.measure(settleTime, func() {})
	idle := s.measure(idleTime, func() {})
	measured := map[string]figures{"idle": idle}
	if nodes > 0 {
		measured["burst"] = s.measure(burstTime, func() { s.launch(burstNodes) })
	}
	s.controller.Stop()
	s.plane.Stop()
	s.proxmox.Close()
	return measured
}

// startScaled starts all. With audit, the API server records requests, and VMs get boot data.
func startScaled(t *testing.T, audit bool) *scaled {
	t.Helper()
	s, dir, ctx := &scaled{t: t}, t.TempDir(), t.Context()
	var err error
	s.proxmox, err = harness.StartProxmox(ctx, harness.ProxmoxOptions{Hosts: 100, Speed: 20, Scenario: largeHosts})
	testenv.Must(t, err)
	t.Cleanup(s.proxmox.Close)
	// The nodes send no heartbeats.
	s.plane, err = harness.StartPlane(ctx, harness.PlaneOptions{Binary: os.Getenv("KUBEPLANE"), Dir: filepath.Join(dir, "kubernetes"), NodeMonitorGracePeriod: 24 * time.Hour, Audit: audit})
	testenv.Must(t, err)
	t.Cleanup(s.plane.Stop)
	testenv.Must(t, harness.InstallCRDs(ctx, s.plane.Client))
	s.controller, err = harness.NewController(harness.ControllerOptions{
		Binary: os.Getenv("CONTROLLER"), Dir: filepath.Join(dir, "controller"), Kubeconfig: s.plane.Kubeconfig,
		Clusters: []harness.Cluster{s.proxmox.Cluster("simulated")},
	})
	testenv.Must(t, err)
	t.Cleanup(s.controller.Stop)
	testenv.Must(t, s.controller.Start(ctx))
	kit, err := harness.NewKit("scale", s.plane.Server)
	testenv.Must(t, err)
	s.class = kit.Class
	if !audit {
		s.class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeNone}
	}
	kit.Pool.Spec.Limits = nil
	kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration(karpv1.Never)
	testenv.Must(t, kit.Apply(ctx, s.plane.Client))
	s.wait(func(ctx context.Context) (bool, error) {
		err := s.plane.Client.Get(ctx, client.ObjectKeyFromObject(s.class), s.class)
		return s.class.StatusConditions().Root().IsTrue(), err
	})
	return s
}

func (s *scaled) wait(condition wait.ConditionWithContextFunc) {
	s.t.Helper()
	if err := wait.PollUntilContextTimeout(s.t.Context(), 500*time.Millisecond, fleetTimeout, true, condition); err != nil {
		s.t.Fatalf("waiting for nodes: %v\n%s", err, harness.Tail(s.controller.Log(), 20))
	}
}

// launch creates NodeClaims and waits until their Nodes are initialized.
func (s *scaled) launch(n int) {
	s.t.Helper()
	began := time.Now()
	for range n {
		testenv.Must(s.t, s.plane.Client.Create(s.t.Context(), s.newClaim()))
	}
	registered := map[string]bool{}
	s.wait(func(ctx context.Context) (bool, error) {
		claims := &karpv1.NodeClaimList{}
		if err := s.plane.Client.List(ctx, claims); err != nil {
			return false, err
		}
		history := &corev1.EventList{}
		if err := s.plane.Client.List(ctx, history, client.MatchingFields{"reason": v1alpha1.EventVMLaunched}); err != nil {
			return false, err
		}
		initialized, launched := 0, fleetmap.LaunchTimes(history.Items)
		for i := range claims.Items {
			claim := &claims.Items[i]
			switch conditions := claim.StatusConditions(); {
			case conditions.Get(karpv1.ConditionTypeInitialized).IsTrue():
				initialized++
			case !launched[claim.UID].IsZero() && !registered[claim.Name]:
				registered[claim.Name] = true
				if err := s.register(ctx, claim); err != nil {
					return false, err
				}
			}
		}
		return initialized == s.claims, nil
	})
	s.t.Logf("launched %d nodes, %d in total: %s", n, s.claims, time.Since(began).Round(time.Second))
}

func (s *scaled) newClaim() *karpv1.NodeClaim {
	s.claims++
	requirement := func(key string, value string) karpv1.NodeSelectorRequirementWithMinValues {
		return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
	}
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("scale-%d", s.claims), Labels: map[string]string{karpv1.NodePoolLabelKey: "scale"}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.ProxmoxNodeClassKind, Name: s.class.Name},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{requirement(corev1.LabelInstanceTypeStable, "c1.1VCPU-2GB"), requirement(karpv1.NodePoolLabelKey, "scale")},
		},
	}
}

// register creates the Node of a NodeClaim, as its kubelet does.
func (s *scaled) register(ctx context.Context, claim *karpv1.NodeClaim) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Name, Labels: claim.Labels},
		Spec:       corev1.NodeSpec{ProviderID: claim.Status.ProviderID, Taints: []corev1.Taint{karpv1.UnregisteredNoExecuteTaint}},
	}
	if err := s.plane.Client.Create(ctx, node); err != nil {
		return client.IgnoreAlreadyExists(err) // a guest with boot data joins itself
	}
	stored := node.DeepCopy()
	node.Status = corev1.NodeStatus{
		Capacity: claim.Status.Capacity, Allocatable: claim.Status.Allocatable, NodeInfo: corev1.NodeSystemInfo{SystemUUID: string(claim.UID)},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.Now()}},
	}
	return s.plane.Client.Status().Patch(ctx, node, client.MergeFrom(stored))
}

// measure runs f and returns the figures of the time until it ended, at least of the window.
func (s *scaled) measure(window time.Duration, f func()) figures {
	s.t.Helper()
	before, reconciles := s.read(), s.readReconciles()
	s.proxmox.ResetRequests()
	after := time.After(window)
	f()
	<-after
	now := s.read()
	out := figures{
		"CPU": now["CPU"] - before["CPU"], "calls": float64(len(s.proxmox.Requests())),
		"memory": now["memory"], "goroutines": now["goroutines"], "workers": now["workers"],
	}
	for name, count := range s.readReconciles() {
		count -= reconciles[name]
		if strings.Contains(name, "proxmox") {
			out["reconciles"] += count
		} else {
			out["core reconciles"] += count
		}
		if count > 0 {
			s.t.Logf("%s: %.0f reconciles in %s", name, count, window)
		}
	}
	return out
}

// readReconciles returns the number of reconciles of each controller.
func (s *scaled) readReconciles() figures {
	s.t.Helper()
	families, err := s.controller.MetricFamilies(s.t.Context())
	testenv.Must(s.t, err)
	out := figures{}
	for _, series := range families["controller_runtime_reconcile_total"].GetMetric() {
		for _, pair := range series.GetLabel() {
			if pair.GetName() == "controller" {
				out[pair.GetValue()] += series.GetCounter().GetValue()
			}
		}
	}
	return out
}

func (s *scaled) read() figures {
	s.t.Helper()
	out := figures{}
	for name, metric := range map[string]string{
		"CPU": "process_cpu_seconds_total", "memory": "process_resident_memory_bytes", "goroutines": "go_goroutines",
		"workers": "controller_runtime_max_concurrent_reconciles",
	} {
		value, err := s.controller.Metric(s.t.Context(), metric, nil)
		testenv.Must(s.t, err)
		out[name] = value
	}
	out["memory"] /= 1 << 20
	return out
}

// auditedNodes are few: the writes of each are the same.
const auditedNodes = 10

// TestWrites counts what the controller writes to Kubernetes for a Node.
func TestWrites(t *testing.T) {
	if !long() {
		t.Skip("SKIPPED: it needs a control plane of its own; run make bench BENCH=TestWrites")
	}
	if os.Getenv("KUBEPLANE") == "" || os.Getenv("CONTROLLER") == "" {
		t.Skip("SKIPPED: KUBEPLANE and CONTROLLER must name the binaries; make bench builds them and sets both")
	}
	s := startScaled(t, true)
	s.launch(auditedNodes)
	s.wait(func(context.Context) (bool, error) { return s.writes(0)["secrets"] >= 3*auditedNodes, nil })
	launched := s.writes(0)
	check := func(phase string, of map[string]int, names map[string]string) {
		for name, resource := range names {
			checkCount(t, "writes per "+phase+", "+name, float64(of[resource])/auditedNodes)
		}
	}
	check("launch", launched, map[string]string{"join token": "secrets", "events": "events", "NodeClaim": "nodeclaims"})

	read := s.auditSize()
	testenv.Must(t, s.plane.Client.DeleteAllOf(t.Context(), &karpv1.NodeClaim{}))
	s.wait(func(ctx context.Context) (bool, error) {
		claims := &karpv1.NodeClaimList{}
		err := s.plane.Client.List(ctx, claims)
		return len(claims.Items) == 0, err
	})
	check("delete", s.writes(read), map[string]string{"join token": "secrets", "NodeClaim": "nodeclaims"})
}

func (s *scaled) auditLog() string { return filepath.Join(s.plane.Dir, "logs", "audit.log") }

// auditSize returns the length of the audit log.
func (s *scaled) auditSize() int64 {
	info, err := os.Stat(s.auditLog())
	testenv.Must(s.t, err)
	return info.Size()
}

// auditEvent is a line of the audit log.
type auditEvent struct {
	Verb, UserAgent string
	ObjectRef       struct{ Resource, Subresource, Namespace string }
	RequestObject   struct {
		Reason   string
		Metadata struct{ Annotations map[string]string }
	}
}

// writes returns how often the controller changed objects of each resource since an offset of the audit
// log. Of NodeClaims, those count that core does not write: annotations of ours, other than those that core
// stores for Create. Of events, those of launches.
func (s *scaled) writes(since int64) map[string]int {
	s.t.Helper()
	content, err := os.ReadFile(s.auditLog())
	testenv.Must(s.t, err)
	out := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(content[since:]))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil || !strings.HasPrefix(event.UserAgent, "karpenter/") {
			continue // a line that is being written, or of another client
		}
		switch event.Verb {
		case "create", "update", "patch", "delete":
		default:
			continue
		}
		ref, object := event.ObjectRef, event.RequestObject
		switch {
		case ref.Resource == "secrets" && ref.Namespace == "kube-system",
			ref.Resource == "events" && object.Reason == v1alpha1.EventVMLaunched,
			ref.Resource == "nodeclaims" && ref.Subresource == "" && hasOurs(object.Metadata.Annotations):
			out[ref.Resource]++
		}
	}
	return out
}

// hasOurs reports whether annotations are written by us, and not by core for Create.
func hasOurs(annotations map[string]string) bool {
	if _, created := annotations[v1alpha1.AnnotationLaunchedBy]; created {
		return false
	}
	for key := range annotations {
		if strings.HasPrefix(key, v1alpha1.Group+"/") {
			return true
		}
	}
	return false
}
