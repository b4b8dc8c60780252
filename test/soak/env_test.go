// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	name   = "soak"
	region = "home"
	hosts  = 4
	// budget is how many Nodes Karpenter may disrupt at the same time.
	budget = 2
)

// apps are the Deployments: CPU request of a pod and maximum number of replicas.
var apps = map[string]struct {
	cpu      string
	replicas int
}{"web": {"250m", 20}, "api": {"1", 6}, "batch": {"2500m", 4}}

// soak is a control plane, a simulated Proxmox cluster and a controller.
type soak struct {
	*lab.Outages
	plane      *harness.Plane
	proxmox    *harness.Proxmox
	controller *harness.Controller
	kube       client.Client
	template   *v1alpha1.ProxmoxTemplate
	kit        *harness.Kit
	images     string
	// before is what Proxmox stored at the start; foreign are the VMIDs of its guests.
	before  harness.Holdings
	foreign map[int]bool
	// replicas are the desired replicas of each app.
	replicas map[string]int
	// maintenance is the host in maintenance, if any.
	maintenance string
	// sick is the VMID of the last guest that was made sick.
	sick   int
	broken chan []string
	// stopMonitor ends the continuous checks.
	stopMonitor context.CancelFunc
}

func newSoak(t *testing.T, version string, random *rand.Rand) *soak {
	t.Helper()
	ctx, dir := t.Context(), t.TempDir()
	s := &soak{replicas: map[string]int{}, foreign: map[int]bool{}, broken: make(chan []string, 1)}
	var err error
	s.proxmox, err = harness.StartProxmox(ctx, harness.ProxmoxOptions{
		Hosts: hosts, Version: version, Speed: 5, Heartbeat: 2 * time.Second,
		Scenario: func(s *pvesim.Scenario) {
			for i := range s.Hosts {
				s.Hosts[i].Cores = 16
			}
		},
	})
	testenv.Must(t, err)
	t.Cleanup(s.proxmox.Close)
	s.Outages = lab.NewOutages(lab.Outages{T: t, Sim: s.proxmox.Simulator, Rand: random, AddFault: s.addFault})
	for i := range hosts {
		s.Hosts = append(s.Hosts, fmt.Sprintf("pve%d", i+1))
	}
	s.plane, err = harness.StartPlane(ctx, harness.PlaneOptions{
		Binary: os.Getenv("KUBEPLANE"), Dir: filepath.Join(dir, "kubernetes"), NodeMonitorGracePeriod: 8 * time.Second,
	})
	testenv.Must(s.T, err)
	t.Cleanup(s.plane.Stop)
	s.kube = s.plane.Client
	testenv.Must(s.T, harness.InstallCRDs(ctx, s.kube))
	s.before, err = s.proxmox.API.Holdings(ctx)
	testenv.Must(s.T, err)
	for _, guest := range s.proxmox.Guests() {
		s.foreign[guest.VMID] = true
	}
	s.startController(dir)
	s.createObjects()
	monitorCtx, stop := context.WithCancel(ctx)
	s.stopMonitor = stop
	go s.monitor(monitorCtx)
	return s
}

// startController starts the controller with the URLs of all hosts.
func (s *soak) startController(dir string) {
	s.T.Helper()
	cluster := s.proxmox.Cluster(region)
	cluster.URLs = nil
	for _, host := range s.Hosts {
		url, err := s.proxmox.HostURL(host)
		testenv.Must(s.T, err)
		cluster.URLs = append(cluster.URLs, url)
	}
	var err error
	s.controller, err = harness.NewController(harness.ControllerOptions{
		Binary: os.Getenv("CONTROLLER"), Dir: filepath.Join(dir, "controller"), Kubeconfig: s.plane.Kubeconfig, Clusters: []harness.Cluster{cluster},
		PollInterval: time.Second, FeatureGates: "NodeRepair=true",
		Args: []string{
			"--orphan-grace-period=10s", "--host-drift-after=20s", "--repair-unready-toleration=20s", "--repair-drain-timeout=10s",
		},
		Durations: "template-grace-period=5s,launch-failure-backoff=5s",
	})
	testenv.Must(s.T, err)
	s.T.Cleanup(s.controller.Stop)
	testenv.Must(s.T, s.controller.Start(s.T.Context()))
}

// createObjects creates a template, a class with an address pool, a NodePool and the apps.
func (s *soak) createObjects() {
	s.T.Helper()
	ctx := s.T.Context()
	s.images = testenv.ServeImages(s.T, 256<<10).URL
	s.template = &v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ProxmoxTemplateSpec{
		SourceImage: v1alpha1.SourceImage{URL: s.images + "/noble-0.img"}, StorageIDs: []string{"local", "local-lvm"},
		Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0"}}, Agent: &v1alpha1.Agent{Enabled: true},
	}}
	testenv.Must(s.T, s.kube.Create(ctx, s.template))
	var err error
	s.kit, err = harness.NewKit(name, s.plane.Server)
	testenv.Must(s.T, err)
	s.kit.Class.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: name}
	s.kit.Class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &v1alpha1.AddressSource{
		CIDR: "172.16.0.0/12", Ranges: []string{"172.16.1.1-172.16.1.100"}, Gateway: "172.16.255.254",
	}}}}
	s.kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("5s")
	s.kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: fmt.Sprint(budget)}}
	s.kit.Pool.Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: 30 * time.Second}
	testenv.Must(s.T, s.kit.Apply(ctx, s.kube))
	for app, properties := range apps {
		s.replicas[app] = properties.replicas / 2
		d := harness.Deployment(app, int32(s.replicas[app]))
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(properties.cpu)}
		testenv.Must(s.T, s.kube.Create(ctx, d))
	}
	one := intstr.FromInt32(1)
	testenv.Must(s.T, s.kube.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "api"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}},
	}))
}

// removeAll deletes all objects, after which Proxmox must be as before.
func (s *soak) removeAll() {
	s.T.Helper()
	ctx := s.T.Context()
	for app := range apps {
		s.scale(app, 0)
	}
	s.mustConverge("without pods")
	testenv.Must(s.T, s.kube.Delete(ctx, s.kit.Pool))
	testenv.Must(s.T, s.kube.Delete(ctx, s.kit.Class))
	testenv.Must(s.T, s.kube.Delete(ctx, s.template))
	began := time.Now()
	for {
		left, err := s.before.Leaks(ctx, s.proxmox.API, s.kube)
		testenv.Must(s.T, err)
		if len(left) == 0 {
			return
		}
		if time.Since(began) > convergenceTimeout {
			s.fail("after deleting all objects", left)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func (s *soak) addFault(f pvesim.Fault) { testenv.AddFault(s.T, s.Sim, f) }

// fail ends the test with violations and the end of the controller's log.
func (s *soak) fail(when string, violations []string) {
	s.T.Helper()
	s.T.Fatalf("%s:\n%s\ntasks:\n%s\ncontroller log:\n%s", when, lines(violations), s.proxmox.API.Tasks(context.WithoutCancel(s.T.Context())),
		harness.Tail(s.controller.Log(), 80))
}

func lines(list []string) string { return "  " + strings.Join(list, "\n  ") }

// firstVMID is the lowest VMID of Nodes. Templates have lower ones.
const firstVMID = 20000

// isNode reports whether a guest is a VM of ours that is or becomes a Node.
func (s *soak) isNode(guest pvesim.GuestState) bool {
	return !s.foreign[guest.VMID] && guest.VMID >= firstVMID
}

// monitor checks the invariant that must always hold. test/chaos checks others during the same disturbances: guests of other users,
// NodeClaims with two VMs, duplicate addresses.
func (s *soak) monitor(ctx context.Context) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if violations := s.budgetViolations(ctx); len(violations) > 0 {
			s.broken <- violations
			return
		}
	}
}

// failIfBroken ends the test if an invariant did not hold.
func (s *soak) failIfBroken() {
	s.T.Helper()
	if !s.controller.Running() {
		s.T.Fatal(s.controller.ExitError())
	}
	select {
	case violations := <-s.broken:
		s.fail(fmt.Sprintf("during disturbances %v", s.Done), violations)
	default:
	}
}

// budgetViolations returns the NodeClaims that Karpenter disrupts at the same time, if they are
// more than the budget.
func (s *soak) budgetViolations(ctx context.Context) []string {
	claims := &karpv1.NodeClaimList{}
	if err := s.kube.List(ctx, claims); err != nil {
		return nil // the test ends
	}
	var disrupted []string
	for _, claim := range claims.Items {
		if condition := claim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason); condition.IsTrue() {
			disrupted = append(disrupted, fmt.Sprintf("%s (%s)", claim.Name, condition.Reason))
		}
	}
	if len(disrupted) <= budget {
		return nil
	}
	return []string{fmt.Sprintf("Karpenter disrupts %s at the same time, the budget is %d", strings.Join(disrupted, ", "), budget)}
}

// violations returns everything that does not match the desired state.
func (s *soak) violations() []string {
	ctx := s.T.Context()
	violations := s.podViolations(ctx)
	claims, nodes := &karpv1.NodeClaimList{}, &corev1.NodeList{}
	testenv.Must(s.T, s.kube.List(ctx, claims))
	testenv.Must(s.T, s.kube.List(ctx, nodes))
	ready := map[string]bool{}
	for _, node := range nodes.Items {
		ready[node.Name] = harness.NodeReady(&node)
	}
	for _, claim := range claims.Items {
		if !claim.DeletionTimestamp.IsZero() || !ready[claim.Status.NodeName] || !claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
			violations = append(violations, fmt.Sprintf("claim %s: deleting %t, node %q ready %t", claim.Name, !claim.DeletionTimestamp.IsZero(), claim.Status.NodeName, ready[claim.Status.NodeName]))
		}
		delete(ready, claim.Status.NodeName)
	}
	for node := range ready {
		violations = append(violations, fmt.Sprintf("node %s has no claim", node))
	}
	if len(violations) > 0 {
		return violations // further violations would only be consequences
	}
	return s.vmViolations(len(claims.Items))
}

// podViolations returns the apps that do not have their pods.
func (s *soak) podViolations(ctx context.Context) (violations []string) {
	for app, replicas := range s.replicas {
		pods, err := harness.Pods(ctx, s.kube, app)
		testenv.Must(s.T, err)
		ready := 0
		for _, pod := range pods {
			if harness.PodReady(&pod) {
				ready++
			}
		}
		if ready != replicas || len(pods) != replicas {
			violations = append(violations, fmt.Sprintf("app %s has %d pods, %d of them ready, want %d", app, len(pods), ready, replicas))
		}
	}
	return violations
}

// vmViolations compares the number of VMs and templates with that of the NodeClaims and hosts. removeAll checks that nothing else is
// left, and test/chaos the rest.
func (s *soak) vmViolations(claims int) (violations []string) {
	templates := 0
	for _, guest := range s.proxmox.Guests() {
		switch {
		case s.foreign[guest.VMID]:
		case !s.isNode(guest):
			templates++
		default:
			claims--
			if guest.Status != "running" || guest.Lock != "" {
				violations = append(violations, fmt.Sprintf("VM %d on host %s is %s, lock %q", guest.VMID, guest.Host, guest.Status, guest.Lock))
			}
		}
	}
	if claims != 0 || templates != hosts {
		violations = append(violations, fmt.Sprintf("%d NodeClaims more than VMs; %d templates, want one on each host", claims, templates))
	}
	return violations
}

// actAsAdmin does what the controller asks an administrator to do: the configuration of a VM
// whose clone or destroy was interrupted by a host failure is locked, and only root may unlock
// it.
func (s *soak) actAsAdmin() {
	ctx := s.T.Context()
	for _, guest := range s.proxmox.Guests() {
		if s.foreign[guest.VMID] || guest.Lock == "" || s.hasRunningTask(ctx, guest.Host) || !s.isStillLocked(guest) {
			continue
		}
		s.T.Logf("deleting VM %d on host %s as root: lock %q without a task", guest.VMID, guest.Host, guest.Lock)
		if s.proxmox.SetConfigLock(guest.VMID, "") == nil {
			_ = s.proxmox.API.Destroy(ctx, harness.Guest{Host: guest.Host, VMID: guest.VMID, Status: guest.Status}) // retried
		}
	}
}

// isStillLocked reports whether a guest has the same lock as before, which may have been removed at the end of a task.
func (s *soak) isStillLocked(was pvesim.GuestState) bool {
	return slices.ContainsFunc(s.proxmox.Guests(), func(now pvesim.GuestState) bool { return now.VMID == was.VMID && now.Lock == was.Lock })
}

// hasRunningTask reports whether a task runs on a host.
func (s *soak) hasRunningTask(ctx context.Context, host string) bool {
	var tasks []struct{ Endtime int64 }
	if err := s.proxmox.API.Call(ctx, "GET", "/nodes/"+host+"/tasks?source=active", nil, &tasks); err != nil {
		return true
	}
	for _, task := range tasks {
		if task.Endtime == 0 {
			return true
		}
	}
	return false
}
