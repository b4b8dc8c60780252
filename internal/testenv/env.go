// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Regions of the simulated Clusters.
const (
	Region = "region-1"
	// OtherRegion is the second Cluster of an Env with OtherHosts.
	OtherRegion = "region-2"
)

// base is what all parts of an Env use.
type base struct {
	*gomega.WithT
	T     *testing.T
	Clock *Clock
}

// Context returns the context of the test.
func (b base) Context() context.Context { return b.T.Context() }

// Eventually polls twice in a second of the test's clock. It fails after 50 minutes, which is a real
// minute if the clock is accelerated.
func (b base) Eventually(actual any, args ...any) gomega.AsyncAssertion {
	b.T.Helper()
	return b.WithT.Eventually(actual, args...).WithPolling(b.Clock.Real(time.Second / 2)).WithTimeout(b.Clock.Real(50 * time.Minute))
}

// Env is one test's simulated Proxmox, its objects in the Kubernetes API, and a process
// of the controller.
type Env struct {
	base
	*Cluster
	*Objects
	// Process is the controller; nil in a new fake Env.
	*Process
	Config  *rest.Config
	Clients map[string]proxmox.Client
	Events  *Recorder
	// KubeCluster is the UID of the Kubernetes cluster.
	KubeCluster string
	setup       setup
	// plans are those that were stored, by the UID of the claim.
	plans sync.Map
}

// New returns an Env with a fake Kubernetes API and a running Process. It needs a simulation.
func New(t *testing.T, options ...Option) *Env {
	t.Helper()
	w := newFake(t, NewClock(1), options)
	w.Process = w.StartProcess()
	return w
}

// NewFake returns an Env like New without a Process, and with a NodeClass.
func NewFake(t *testing.T, options ...Option) *Env {
	t.Helper()
	w := newFake(t, NewClock(1), options)
	w.NodeClass = NewNodeClass("default", "ubuntu", w.Name)
	w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: SecurityGroup, Interface: "net0"}}
	w.NodeClass.Status.SelectedZones = w.zones
	w.ResetForeignGuests()
	return w
}

func newFake(t *testing.T, clock *Clock, options []Option) *Env {
	t.Helper()
	if clock.speed == 1 && !inSimulation() {
		t.Fatal("this Env needs a simulation: call it in testenv.Simulated")
	}
	w := newEnv(t, metav1.NamespaceSystem, clock, options)
	w.Kube = NewFakeKube(t)
	w.connect()
	return w
}

// NewUnsimulated returns an Env like New outside of a simulation, with an accelerated clock. Tests of
// core's scheduler and of its disruption need it: the goroutines of their caches never end.
func NewUnsimulated(t *testing.T, options ...Option) *Env {
	t.Helper()
	w := newFake(t, NewSteppedClock(Speed), options)
	w.Process = w.StartProcess()
	return w
}

// NewWithAPIServer returns an Env with objects in the shared API server and a running Process, which
// ends with the test. Only tests of what the API server does need it: validation, conflicts,
// permissions, watches and controllers of core.
func NewWithAPIServer(t *testing.T, options ...Option) *Env {
	t.Helper()
	if inSimulation() {
		t.Fatal("a simulation cannot wait for the API server")
	}
	w := newEnv(t, "w"+strings.ReplaceAll(uuid.NewString(), "-", "")[:10], NewSteppedClock(Speed), options)
	w.prefix = w.Name + "-"
	w.Config = sharedServer(t)
	plain, err := client.NewWithWatch(w.Config, client.Options{Scheme: scheme.Scheme})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Kube = isolated(plain, w.Name)
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.Name}})
	for _, o := range BootObjects(w.Name) {
		w.Create(o)
	}
	w.connect()
	w.Process = w.StartProcess()
	return w
}

func newEnv(t *testing.T, name string, clock *Clock, options []Option) *Env {
	b := base{WithT: gomega.NewWithT(t), T: t, Clock: clock}
	w := &Env{base: b, Events: &Recorder{}, KubeCluster: uuid.NewString(), setup: setup{hosts: 1, guests: pvesim.CooperativeGuests{}}, Clients: map[string]proxmox.Client{}}
	for _, option := range options {
		option(&w.setup)
	}
	w.Objects = &Objects{base: b, Name: name, zones: Zones(w.setup.hosts)}
	w.Cluster = &Cluster{base: b, hosts: w.setup.hosts}
	return w
}

// connect starts the simulated Clusters and their clients.
func (w *Env) connect() {
	w.T.Helper()
	scenario := pvesim.DefaultScenario(w.setup.hosts)
	for _, change := range w.setup.scenario {
		change(scenario)
	}
	w.Sim = StartSimulator(w.T, scenario, pvesim.Options{Speed: w.Clock.speed, RealLockTimeouts: true, Guests: recordingGuests{GuestRuntime: w.setup.guests, cluster: w.Cluster}})
	w.Client = NewClient(w.T, w.Sim, ClusterConfig(w.Sim, Region))
	w.Clients[Region] = w.Client
	if w.setup.otherHosts > 0 {
		other := StartSimulator(w.T, pvesim.DefaultScenario(w.setup.otherHosts), pvesim.Options{Speed: w.Clock.speed})
		w.Clients[OtherRegion] = NewClient(w.T, other, ClusterConfig(other, OtherRegion))
	}
}

// Go runs something until the test ends, and waits for its end.
func Go(t testing.TB, start func(context.Context) error) {
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = start(t.Context()) }()
	t.Cleanup(func() { <-stopped })
}

// Running reads from Proxmox whether a claim's VM runs; the list of guests lags behind.
func (w *Env) Running(claim *karpv1.NodeClaim) bool {
	w.T.Helper()
	in := w.Intent(claim)
	state, err := w.Client.VMStatus(w.T.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return state.Running
}

// PowerOff stops a claim's guest, like a reboot of its Host, and waits until the
// Snapshot shows it.
func (w *Env) PowerOff(claim *karpv1.NodeClaim) {
	w.T.Helper()
	vmid := w.Intent(claim).VMID
	w.Expect(w.Sim.PowerOffGuest(vmid)).To(gomega.Succeed())
	w.WaitStatus(vmid, "stopped")
}

// WaitStatus polls until the Snapshot shows that a VM of Region has a status.
func (w *Env) WaitStatus(vmid int, status string) {
	w.T.Helper()
	w.Eventually(func() string {
		w.Refresh()
		guest, _ := w.Inventory.View().Guest(Region, vmid)
		return guest.Status
	}).Should(gomega.Equal(status))
}

// ExpectNoOrphans checks that there is no VM, ISO, volume or token of ours, and that no
// other guest was changed.
func (w *Env) ExpectNoOrphans() {
	w.T.Helper()
	w.expectNoGuests()
	w.ExpectNoBootDrives()
	w.ExpectNoTokens()
}
