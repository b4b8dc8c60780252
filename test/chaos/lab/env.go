// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab is a test environment for fault injection: a simulated Proxmox, a Kubernetes API
// without a control plane, and controllers that run the product's reconcilers and can be
// killed at any time. A Process is one run of the controller binary, including the parts of
// Karpenter's core that act on NodeClaims. The Env checks the invariants.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	kubeCluster = "0f0f0f0f-0000-4000-8000-000000000001"
	// diskBytes is the disk size of the classes, larger than the template's disk.
	diskBytes = 30 << 30
	// diskName is the name of the other disk of the classes.
	diskName = "data"
)

// Options configure an Env.
type Options struct {
	// Hosts is the number of hosts, 1 by default.
	Hosts int
	// Speed is the speed of simulated time, 50 by default.
	Speed float64
	Seed  uint64
	// Installation is how Proxmox is set up, the first of Installations by default.
	Installation Installation
	// Addresses is the size of the class's address pool. With 0, VMs use DHCP.
	Addresses int
	// DataDisk adds a disk to the class.
	DataDisk bool
	// HA adds the VMs of the class to HA, and keeps them on separate hosts if the release can.
	HA bool
	// Machine gives the class one machine with a retained disk, so it has one VM at a time.
	Machine bool
	// HostURLs makes Processes use the API of each host instead of that of the Cluster, so hosts
	// can hang, or be in a part of the Cluster without quorum.
	HostURLs bool
	// Templates adds what a prepared ProxmoxTemplate needs. The invariants are then those of
	// templates instead of NodeClaims.
	Templates *TemplateOptions
	// Scenario may change the simulated Cluster.
	Scenario func(*pvesim.Scenario)
}

// Installation is a release of Proxmox VE and the permissions of our token.
type Installation struct {
	Version string
	// PoolScoped tokens have permissions on a resource pool and what it needs, instead of the
	// whole Cluster.
	PoolScoped bool
}

func (i Installation) String() string {
	if i.PoolScoped {
		return i.Version + ", pool-scoped role"
	}
	return i.Version + ", documented role"
}

// Installations returns the supported installations.
func Installations() []Installation {
	return []Installation{{"8.4", false}, {"9.2", false}, {"8.4", true}, {"9.2", true}}
}

// Env is the simulated Proxmox and the Kubernetes API.
type Env struct {
	t     testing.TB
	Sim   *pvesim.Simulator
	Clock *testenv.Clock
	// Kube has no control plane. A Process does what core does to NodeClaims.
	Kube  client.WithWatch
	Class *v1alpha1.ProxmoxNodeClass
	Hosts []string
	// admin is a separate connection for checks. No Process uses it.
	admin proxmox.Client
	// Installation is how Proxmox is set up.
	Installation Installation
	// resourcePool is the resource pool of our VMs, if any.
	resourcePool string
	// addresses is the address pool of our VMs, if any.
	addresses *v1alpha1.AddressSource
	// dataDisk means that the classes have a disk besides the boot disk.
	dataDisk bool
	// ha means that the VMs of the classes are in HA.
	ha bool
	// machine means that the classes have a machine with a retained disk, and retained is its
	// volume once it exists.
	machine  bool
	retained string
	// urls are the URLs that Processes use.
	urls []string
	// builders are the guests of builder VMs, nil without templates.
	builders *builders

	mu sync.Mutex
	// foreignGuests holds the recorded state of other users' guests by VMID.
	foreignGuests map[int]string
	// lateFirewall means that a firewall write may take effect after its VM was deleted.
	lateFirewall bool
	// removed are the hosts that were removed, and lost the guests on them.
	removed []string
	lost    map[int]bool
	// takenAddresses are addresses of NodeClaims that other users have taken.
	takenAddresses []netip.Addr
}

// New returns an Env that ends with the test.
func New(t testing.TB, o Options) *Env {
	t.Helper()
	o.Hosts, o.Speed, o.Installation = max(o.Hosts, 1), cmp.Or(o.Speed, testenv.Speed), cmp.Or(o.Installation, Installations()[0])
	scenario := pvesim.DefaultScenario(o.Hosts)
	scenario.Version = o.Installation.Version
	if o.Installation.PoolScoped {
		pvesim.PoolScoped(scenario)
	}
	if o.Machine {
		allowRetainedDisks(scenario)
	}
	// The checks need to read everything.
	scenario.Users = append(scenario.Users, pvesim.User{ID: "lab@pve", Tokens: []pvesim.Token{{ID: "lab", Secret: pvesim.DefaultTokenSecret}}})
	scenario.ACLs = append(scenario.ACLs, pvesim.ACL{Path: "/", Role: "Administrator", User: "lab@pve"})
	if o.HA {
		scenario.Roles = append(scenario.Roles, pvesim.Role{ID: "KarpenterHA", Privileges: []string{"Sys.Audit", "Sys.Console"}})
		scenario.ACLs = append(scenario.ACLs, pvesim.ACL{Path: "/", Role: "KarpenterHA", User: "kubernetes@pve", NoPropagate: true})
	}
	if o.Templates != nil {
		o.Templates.apply(scenario)
	}
	if o.Scenario != nil {
		o.Scenario(scenario)
	}
	e := &Env{
		t: t, Installation: o.Installation, Kube: testenv.NewFakeKube(t), Clock: testenv.NewClock(o.Speed),
		dataDisk: o.DataDisk, ha: o.HA, machine: o.Machine, foreignGuests: map[int]string{}, lost: map[int]bool{},
	}
	simulator := pvesim.Options{Speed: o.Speed, Seed: o.Seed}
	if o.Templates != nil {
		e.builders = newBuilders(t, *o.Templates)
		simulator.Guests = e.builders
	}
	e.Sim = testenv.StartSimulator(t, scenario, simulator)
	e.urls = []string{e.Sim.URL()}
	e.admin = e.client("lab@pve!lab", 0)
	if o.HostURLs {
		e.useHostURLs(scenario.Hosts)
	}
	if o.Installation.PoolScoped {
		e.resourcePool = pvesim.PoolID
	}
	if o.Addresses > 0 {
		e.addresses = &v1alpha1.AddressSource{CIDR: "10.20.0.0/16", Ranges: []string{fmt.Sprintf("10.20.1.1-10.20.1.%d", o.Addresses)}, Gateway: "10.20.0.1"}
	}
	e.Class = e.NewClass("default")
	for _, host := range scenario.Hosts {
		e.Hosts = append(e.Hosts, host.Name)
	}
	e.Class.Status.SelectedZones = testenv.Zones(o.Hosts)
	testenv.Must(t, e.Kube.Create(t.Context(), e.Class.DeepCopy()))
	e.syncHostClocks()
	testenv.Must(t, e.recordGuests())
	if o.Templates != nil {
		e.recordVolumes()
	}
	return e
}

// recordGuests records the existing guests as foreign.
func (e *Env) recordGuests() error {
	resources, err := e.resources()
	for _, row := range resources.Guests {
		err = errors.Join(err, retry(func() error { return e.recordForeign(row) }))
	}
	return err
}

// resources returns what the Cluster lists.
func (e *Env) resources() (resources proxmox.Resources, err error) {
	err = retry(func() error { resources, err = e.admin.Resources(context.Background()); return err })
	return resources, err
}

// retry retries calls of an admin: they may time out on a busy machine, and a Cluster that
// regained quorum reports that late.
func retry(call func() error) (err error) {
	for range 20 {
		if err = call(); err == nil {
			return nil
		}
	}
	return err
}

// syncHostClocks sets the hosts' clocks to simulated time: the garbage collector compares a
// volume's age with its own clock.
func (e *Env) syncHostClocks() {
	testenv.Go(e.t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			e.Sim.SetClockSkew(e.Clock.Skew())
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	})
}

// NewClass returns a NodeClass that uses all parts of a launch: a boot drive, a security
// group, a disk that must grow.
func (e *Env) NewClass(name string) *v1alpha1.ProxmoxNodeClass {
	class := testenv.NewNodeClass(name, "ubuntu", metav1.NamespaceSystem)
	class.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: testenv.SecurityGroup, Interface: "net0"}}
	class.Spec.ResourcePool = e.resourcePool
	if e.dataDisk {
		class.Spec.Disks = []v1alpha1.Disk{{Name: diskName, Size: "10Gi"}}
	}
	if e.ha {
		class.Spec.PlacementStrategy.PoolAffinity = v1alpha1.PoolAffinitySeparateHosts
		class.Spec.HighAvailability = &v1alpha1.HighAvailability{SeparateHosts: e.Installation.Version != "8.4"}
	}
	if e.machine {
		addMachine(class)
	}
	if e.addresses != nil {
		class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: e.addresses}}}
	}
	return class
}

// CreateClaim creates a NodeClaim of the default class, as core would.
func (e *Env) CreateClaim(name string) { e.CreateClaimOf(e.Class.Name, name) }

// CreateClaimOf creates a NodeClaim of a class in a NodePool of the same name.
func (e *Env) CreateClaimOf(class, name string) {
	e.t.Helper()
	claim := testenv.NewNodeClaim(name, class, class)
	claim.Finalizers = []string{karpv1.TerminationFinalizer}
	testenv.Must(e.t, e.Kube.Create(e.t.Context(), claim))
}

// Claims returns all NodeClaims.
func (e *Env) Claims() []karpv1.NodeClaim {
	list := &karpv1.NodeClaimList{}
	if err := e.Kube.List(context.Background(), list); err != nil {
		e.t.Errorf("listing claims: %v", err)
	}
	return list.Items
}

// DeleteClaim deletes a NodeClaim, as kubectl or core does. Its finalizer remains.
func (e *Env) DeleteClaim(name string) {
	e.t.Helper()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	testenv.Must(e.t, client.IgnoreNotFound(e.Kube.Delete(e.t.Context(), claim)))
}

// AddFault adds a fault to the simulated Cluster.
func (e *Env) AddFault(f pvesim.Fault) {
	e.t.Helper()
	e.mu.Lock()
	e.lateFirewall = e.lateFirewall || (f.Task == "" && f.Delay > 0 && (f.Path == "" || strings.Contains(f.Path, "/firewall/")))
	e.mu.Unlock()
	testenv.AddFault(e.t, e.Sim, f)
}

// useHostURLs makes Processes that start later use the API of each host.
func (e *Env) useHostURLs(hosts []pvesim.Host) {
	e.t.Helper()
	e.urls = nil
	for _, host := range hosts {
		url, err := e.Sim.HostURL(host.Name)
		testenv.Must(e.t, err)
		e.urls = append(e.urls, url)
	}
}

// client returns a client of the simulator with its own token and connections.
func (e *Env) client(token string, timeout time.Duration) proxmox.Client {
	e.t.Helper()
	config := testenv.ClusterConfig(e.Sim, testenv.Region)
	config.TokenID, config.URLs = token, e.urls
	options := testenv.ClientOptions(e.Sim)
	options.ResponseTimeout = timeout
	c, err := proxmox.New(config, options)
	testenv.Must(e.t, err)
	return c
}

// ResponseTimeout is the minimum real time that a Process waits for a response. The
// proportional timeout would be too short for a busy machine.
const ResponseTimeout = 5 * time.Second
