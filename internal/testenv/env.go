// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Env is one test's simulated Proxmox, its objects in the Kubernetes API, and a process
// of the controller.
type Env struct {
	*gomega.WithT
	// Process is the controller; nil in a new fake Env.
	*Process
	T *testing.T
	// Name is unique. Names of objects without a namespace start with it.
	Name string
	// Kube reads and writes the objects of this Env, and is not cached.
	Kube   client.Client
	Config *rest.Config
	// Sim is the Cluster of Region, OtherSim that of OtherRegion.
	Sim, OtherSim *pvesim.Simulator
	Clients       map[string]proxmox.Client
	// Roots are the root logins that tests pass to controllers.
	Roots  map[string]proxmox.Root
	Clock  *Clock
	Events *Recorder
	// NodeClass of a fake Env, ready on all Hosts. It is not stored in the API.
	NodeClass *v1alpha1.ProxmoxNodeClass

	// KubeCluster is the UID of the Kubernetes cluster.
	KubeCluster string
	setup       setup
	fake        bool
	// booted and firmware are what VMs booted with, by VMID.
	booted, firmware sync.Map
	// foreign is the state of guests that are not ours when the test started.
	foreign map[int]string
}

// New returns an Env with objects in the shared API server and a running Process. It
// ends with the test.
func New(t *testing.T, options ...Option) *Env {
	t.Helper()
	w := newEnv(t, "w"+strings.ReplaceAll(uuid.NewString(), "-", "")[:10], options)
	w.Config = APIServer(t)
	plain, err := client.NewWithWatch(w.Config, client.Options{Scheme: scheme.Scheme})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Kube = isolated(plain, w.Name)
	w.makeNamespace()
	w.connect()
	w.Process = w.StartProcess()
	return w
}

func newEnv(t *testing.T, name string, options []Option) *Env {
	w := &Env{
		WithT: gomega.NewWithT(t), T: t, Clock: &Clock{}, Events: &Recorder{},
		Name: name, KubeCluster: uuid.NewString(), setup: setup{hosts: 1}, Clients: map[string]proxmox.Client{},
	}
	for _, option := range options {
		option(&w.setup)
	}
	return w
}

// connect starts the simulated Clusters and their clients.
func (w *Env) connect() {
	w.T.Helper()
	w.Sim = w.simulate(w.setup.hosts, w.setup.scenario...)
	w.Clients[Region] = w.Connect(w.Sim, Region)
	if w.setup.otherHosts > 0 {
		w.OtherSim = w.simulate(w.setup.otherHosts)
		w.Clients[OtherRegion] = w.Connect(w.OtherSim, OtherRegion)
	}
}

func (w *Env) simulate(hosts int, changes ...func(*pvesim.Scenario)) *pvesim.Simulator {
	w.T.Helper()
	scenario := pvesim.DefaultScenario(hosts)
	for _, change := range changes {
		change(scenario)
	}
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: Speed, Guests: recordingGuests{env: w}})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(sim.Start(w.T.Context())).To(gomega.Succeed())
	w.T.Cleanup(sim.Close)
	return sim
}

// recordingGuests record what they boot with.
type recordingGuests struct {
	pvesim.CooperativeGuests
	env *Env
}

func (g recordingGuests) Boot(ctx context.Context, m *pvesim.Machine) {
	for _, cd := range m.CDROMs() {
		g.env.booted.Store(m.VMID, cd.Image)
	}
	if len(m.Firmware) > 0 {
		g.env.firmware.Store(m.VMID, m.Firmware)
	}
	g.CooperativeGuests.Boot(ctx, m)
}

// Connect returns a client of a simulated Cluster.
func (w *Env) Connect(sim *pvesim.Simulator, region string) proxmox.Client {
	w.T.Helper()
	c, err := proxmox.New(clusterConfig(sim, region), proxmox.Options{})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return c
}

func clusterConfig(sim *pvesim.Simulator, region string) proxmox.ClusterConfig {
	return proxmox.ClusterConfig{
		Region: region, URLs: []string{sim.URL()}, CA: string(sim.CAPEM()),
		TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}
}

// Named returns a name that is unique to this Env.
func (w *Env) Named(name string) string {
	if w.fake {
		return name
	}
	return fmt.Sprintf("%s-%s", w.Name, name)
}

// run runs something until the test ends, and waits for its end.
func (w *Env) run(start func(context.Context) error) {
	ctx, cancel := context.WithCancel(w.T.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = start(ctx) }()
	w.T.Cleanup(func() { cancel(); <-stopped })
}
