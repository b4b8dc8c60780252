// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Names in every world.
const (
	Region = "region-1"
	// Other is the second Cluster of worlds that have one.
	Other = "region-2"
)

// World is one test's Proxmox, its share of the API server, and the providers
// between them.
type Env struct {
	*gomega.WithT
	T *testing.T
	// Name is unique; objects without a namespace carry it in theirs.
	Name string
	// Kube sees this world's objects only, and reads past any cache.
	Kube   client.Client
	Config *rest.Config
	// Sim is the Cluster of Region, OtherSim that of Other.
	Sim, OtherSim *pvesim.Simulator
	Clients       map[string]proxmox.Client
	// Roots are given to the processes that start after they were set.
	Roots map[string]proxmox.Root
	*Process
	Clock  *Clock
	Events *Recorder

	kubeCluster string
	setup       setup
}

// Process is one run of the controller: what it knows is lost with it.
type Process struct {
	Inventory *inventory.Inventory
	Types     *instancetype.Provider
	Boot      boot.Source
	Instances *operations.Operations
}

type setup struct {
	hosts, otherHosts int
	scenario          []func(*pvesim.Scenario)
	unread, still     bool
	settings          []func(*instance.Settings)
	metrics           instance.Metrics
}

// Option changes a world before it begins.
type Option func(*setup)

// Hosts of Region; 1 by default.
func Hosts(n int) Option { return func(s *setup) { s.hosts = n } }

// OtherHosts adds a second Cluster, with that many hosts.
func OtherHosts(n int) Option { return func(s *setup) { s.otherHosts = n } }

// Scenario changes Region's Cluster.
func Scenario(change func(*pvesim.Scenario)) Option {
	return func(s *setup) { s.scenario = append(s.scenario, change) }
}

// Unread is a world whose Clusters were never read, and are not polled.
func Unread() Option { return func(s *setup) { s.unread, s.still = true, true } }

// Still is a world whose Clusters are read once and then only on request.
func Still() Option { return func(s *setup) { s.still = true } }

// Settings changes the limits of the instance provider.
func Settings(change func(*instance.Settings)) Option {
	return func(s *setup) { s.settings = append(s.settings, change) }
}

// Metrics are those of the instance operations.
func Metrics(m instance.Metrics) Option { return func(s *setup) { s.metrics = m } }

// New makes a world. It ends with the test.
func New(t *testing.T, options ...Option) *Env {
	t.Helper()
	w := &Env{
		WithT: gomega.NewWithT(t), T: t, Config: APIServer(t), Clock: &Clock{}, Events: &Recorder{},
		Name: "w" + strings.ReplaceAll(uuid.NewString(), "-", "")[:10], kubeCluster: uuid.NewString(), setup: setup{hosts: 1}, Clients: map[string]proxmox.Client{},
	}
	for _, option := range options {
		option(&w.setup)
	}
	plain, err := client.NewWithWatch(w.Config, client.Options{Scheme: scheme.Scheme})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Kube = isolated(plain, w.Name)
	w.makeNamespace()

	w.Sim = w.simulate(w.setup.hosts, w.setup.scenario...)
	w.Clients[Region] = w.Connect(w.Sim, Region)
	if w.setup.otherHosts > 0 {
		w.OtherSim = w.simulate(w.setup.otherHosts)
		w.Clients[Other] = w.Connect(w.OtherSim, Other)
	}
	w.Process = w.startProcess(w.kubeCluster)
	return w
}

// Neighbour is the provider of another Kubernetes cluster on the same Proxmox.
func (w *Env) Neighbor() *Process {
	w.T.Helper()
	return w.startProcess(uuid.NewString())
}

// Restart is a restart of the controller: what it knew is gone. Without a look, the
// Clusters do not answer the new one.
func (w *Env) Restart(look bool) {
	w.T.Helper()
	w.setup.unread, w.setup.still = !look, w.setup.still || !look
	w.Process = w.startProcess(w.kubeCluster)
}

func (w *Env) simulate(hosts int, changes ...func(*pvesim.Scenario)) *pvesim.Simulator {
	w.T.Helper()
	scenario := pvesim.DefaultScenario(hosts)
	for _, change := range changes {
		change(scenario)
	}
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: Speed})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(sim.Start(w.T.Context())).To(gomega.Succeed())
	w.T.Cleanup(sim.Close)
	return sim
}

// Connect makes a client of a simulated Cluster.
func (w *Env) Connect(sim *pvesim.Simulator, region string) proxmox.Client {
	w.T.Helper()
	c, err := proxmox.New(proxmox.ClusterConfig{
		Region: region, URLs: []string{sim.URL()}, CA: string(sim.CAPEM()),
		TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}, proxmox.Options{})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return c
}

func (w *Env) startProcess(kubeCluster string) *Process {
	w.T.Helper()
	s := w.setup
	clients := make([]proxmox.Client, 0, len(w.Clients))
	for _, c := range w.Clients {
		clients = append(clients, c)
	}
	inv, err := inventory.New(clients, inventory.Options{Clock: calendar{of: w.Clock}, Interval: 100 * time.Millisecond, DetailRange: inventory.VMIDRange{From: 20000, To: 99999}})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	if !s.still {
		w.run(inv.Start)
	}
	if !s.unread {
		w.Expect(inv.RefreshAll(w.T.Context())).To(gomega.Succeed())
	}
	types, err := instancetype.New(instancetype.Deps{Inventory: inv, Clock: w.Clock})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	settings := instance.DefaultSettings()
	settings.TaskTimeout = 20 * time.Second
	settings.LaunchRetryTimeout = time.Minute
	for _, change := range s.settings {
		change(&settings)
	}
	source := boot.Source{Reader: w.Kube, Namespace: w.Name, Version: "v1.36.3", Tokens: &bootdata.Tokens{Client: w.Kube}}
	return &Process{Inventory: inv, Types: types, Boot: source, Instances: operations.New(operations.Deps{
		Clients: w.Clients, Roots: w.Roots, Inventory: inv, Types: types, Kube: w.Kube, Boot: source,
		Clock: w.Clock, KubeCluster: kubeCluster, Settings: settings, Metrics: s.metrics,
	})}
}

// run something until the test ends, and wait for its end.
func (w *Env) run(start func(context.Context) error) {
	ctx, cancel := context.WithCancel(w.T.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = start(ctx) }()
	w.T.Cleanup(func() { cancel(); <-stopped })
}

// Refresh reads all Clusters now. It fails the test where one does not answer.
func (w *Env) Refresh() {
	w.T.Helper()
	w.Expect(w.Inventory.RefreshAll(w.T.Context())).To(gomega.Succeed())
}

// Cut lets every call to Region's Cluster fail until the returned function is called.
func (w *Env) Cut() (mend func()) {
	w.T.Helper()
	id, err := w.Sim.AddFault(pvesim.Fault{Status: 595, Message: "No route to host"})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return func() { w.Sim.RemoveFault(id) }
}

// Named makes a name unique to this world.
func (w *Env) Named(name string) string { return fmt.Sprintf("%s-%s", w.Name, name) }
