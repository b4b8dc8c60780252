// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpenterapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	// Region is the simulated Cluster's.
	Region      = "region-1"
	kubeCluster = "0f0f0f0f-0000-4000-8000-000000000001"
	// FirstVMID is where our range begins: whatever has a VMID in it is ours, or a
	// stranger that the test knows of.
	FirstVMID = 20000
	// LastVMID is where it ends.
	LastVMID = 99999
	// instanceType is small enough for seven on a Host.
	instanceType = "t1.2VCPU-6GB"
	// diskSize is more than the Template's.
	diskSize, diskBytes = "30G", 30 << 30
	securityGroup       = "kubernetes"
)

// What the controllers log about troubles that were made on purpose would drown
// what the tests say.
func init() { log.SetLogger(logr.Discard()) }

// Options of a World.
type Options struct {
	// Hosts, 1 by default.
	Hosts int
	// Speed of simulated time, 50 by default.
	Speed float64
	Seed  uint64
	// Installation is how Proxmox is set up, the first one by default.
	Installation Installation
	// Addresses is how many the pool of the class has; without any, VMs use DHCP.
	Addresses int
	// Scenario may change the simulated Cluster.
	Scenario func(*pvesim.Scenario)
	// Admin opens the simulator's own status page, see Tasks.
	Admin bool
}

// Installation is a release of Proxmox VE and what our token may do there.
type Installation struct {
	Version string
	// PoolScoped tokens have rights on a pool and what it needs, instead of the whole
	// Cluster.
	PoolScoped bool
}

func (i Installation) String() string {
	if i.PoolScoped {
		return i.Version + ", pool-scoped role"
	}
	return i.Version + ", documented role"
}

// Installations are those that we promise to work on.
func Installations() []Installation {
	return []Installation{{"8.4", false}, {"9.2", false}, {"8.4", true}, {"9.2", true}}
}

// World is the simulated Proxmox and the Kubernetes API.
type World struct {
	t     testing.TB
	Sim   *pvesim.Simulator
	Clock *Clock
	// Kube has no control plane behind it: what core does to Claims, a Process does.
	Kube  client.WithWatch
	Class *v1alpha1.ProxmoxNodeClass
	Hosts []string
	// admin looks after the World; no Process uses its connections.
	admin proxmox.Client
	// Installation is how Proxmox is set up.
	Installation Installation
	// pool that our VMs are made in, if any.
	pool string
	// addresses that our VMs are given, if any.
	addresses *v1alpha1.AddressSource

	mu sync.Mutex
	// strangers is what the guests of others looked like when they appeared.
	strangers map[int]string
	// stolen are addresses of Claims that others have taken.
	stolen []netip.Addr
}

// New makes a World that ends with the test.
func New(t testing.TB, o Options) *World {
	t.Helper()
	if o.Hosts == 0 {
		o.Hosts = 1
	}
	if o.Speed == 0 {
		o.Speed = 50
	}
	scenario := pvesim.DefaultScenario(o.Hosts)
	if o.Installation.Version == "" {
		o.Installation = Installations()[0]
	}
	scenario.Version = o.Installation.Version
	if o.Installation.PoolScoped {
		pvesim.PoolScoped(scenario)
	}
	// Whoever looks after the World must see all of it.
	scenario.Users = append(scenario.Users, pvesim.User{ID: "lab@pve", Tokens: []pvesim.Token{{ID: "lab", Secret: pvesim.DefaultTokenSecret}}})
	scenario.ACLs = append(scenario.ACLs, pvesim.ACL{Path: "/", Role: "Administrator", User: "lab@pve"})
	if o.Scenario != nil {
		o.Scenario(scenario)
	}
	options := pvesim.Options{Speed: o.Speed, Seed: o.Seed}
	if o.Admin {
		options.AdminListen = "127.0.0.1:0"
	}
	sim, err := pvesim.New(scenario, options)
	must(t, err)
	must(t, sim.Start(t.Context()))
	t.Cleanup(sim.Close)

	w := &World{t: t, Sim: sim, Installation: o.Installation, Clock: NewClock(o.Speed), strangers: map[int]string{}}
	w.Kube = newKube(t)
	w.admin = w.client("lab@pve!lab", 0)
	if o.Installation.PoolScoped {
		w.pool = pvesim.PoolID
	}
	if o.Addresses > 0 {
		w.addresses = &v1alpha1.AddressSource{CIDR: "10.20.0.0/16", Ranges: []string{fmt.Sprintf("10.20.1.1-10.20.1.%d", o.Addresses)}, Gateway: "10.20.0.1"}
	}
	w.Class = w.NewClass("default")
	for _, host := range scenario.Hosts {
		w.Hosts = append(w.Hosts, host.Name)
	}
	for i, host := range w.Hosts {
		w.Class.Status.SelectedZones = append(w.Class.Status.SelectedZones, fmt.Sprintf("%s/%s/%d", Region, host, 9000+i))
	}
	must(t, w.Kube.Create(t.Context(), w.Class.DeepCopy()))
	w.keepTime()
	must(t, w.rememberAll())
	return w
}

// rememberAll takes the guests' portraits before anything happens. On a busy machine a
// call of the lab's own may time out.
func (w *World) rememberAll() (err error) {
	for range 20 {
		var resources proxmox.Resources
		if resources, err = w.admin.Resources(w.t.Context()); err != nil {
			continue
		}
		for _, row := range resources.Guests {
			err = errors.Join(err, w.remember(row))
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// keepTime lets the Hosts' clocks follow simulated time: the collector compares
// a volume's age with its own clock.
func (w *World) keepTime() {
	ctx, cancel := context.WithCancel(w.t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			w.Sim.SetClockSkew(w.Clock.ahead())
			time.Sleep(5 * time.Millisecond)
		}
	}()
	w.t.Cleanup(func() { cancel(); <-stopped })
}

func newKube(t testing.TB) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	karpenter := schema.GroupVersion{Group: karpenterapis.Group, Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	return fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&karpv1.NodeClaim{}).WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "CA"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "templates"}, Data: map[string][]byte{
			"user-data": []byte("#cloud-config\nhostname: {{ .Metadata.Hostname }}\n"),
		}},
	).Build()
}

// NewClass is a NodeClass with all that a launch can have: a boot drive, a
// security group, a disk that must grow.
func (w *World) NewClass(name string) *v1alpha1.ProxmoxNodeClass {
	var network *v1alpha1.Network
	if w.addresses != nil {
		network = &v1alpha1.Network{Interfaces: []v1alpha1.InterfaceAddresses{{Name: "net0", Address4: w.addresses}}}
	}
	return &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: "ProxmoxUnmanagedTemplate", Name: "ubuntu"},
			BootDevice:          v1alpha1.BootDevice{Size: diskSize},
			MetadataOptions: v1alpha1.MetadataOptions{
				Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: metav1.NamespaceSystem, Name: "templates"},
			},
			SecurityGroups: []v1alpha1.SecurityGroup{{Name: securityGroup, Interface: "net0"}},
			Tags:           []string{"karpenter"},
			ResourcePool:   w.pool,
			Network:        network,
		},
	}
}

// Claim makes a Claim of the default class as core would.
func (w *World) Claim(name string) *karpv1.NodeClaim { return w.ClaimOf(w.Class.Name, name) }

// ClaimOf makes a Claim of a class, in a pool of the same name.
func (w *World) ClaimOf(class, name string) *karpv1.NodeClaim {
	w.t.Helper()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(uuid.NewString()),
			Labels:     map[string]string{karpv1.NodePoolLabelKey: class},
			Finalizers: []string{karpv1.TerminationFinalizer},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "ProxmoxNodeClass", Name: class},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{
				Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{instanceType},
			}},
		},
	}
	must(w.t, w.Kube.Create(w.t.Context(), claim))
	return claim
}

// Claims lists them as the API has them now.
func (w *World) Claims() []karpv1.NodeClaim {
	list := &karpv1.NodeClaimList{}
	if err := w.Kube.List(context.Background(), list); err != nil {
		w.t.Errorf("listing the claims, %v", err)
	}
	return list.Items
}

// Delete begins a Claim's deletion, as kubectl or core does.
func (w *World) Delete(name string) {
	w.t.Helper()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(w.t, client.IgnoreNotFound(w.Kube.Delete(w.t.Context(), claim)))
}

// client speaks to the simulator with a token and connections of its own.
func (w *World) client(token string, timeout time.Duration) proxmox.Client {
	w.t.Helper()
	c, err := proxmox.New(proxmox.ClusterConfig{
		Region: Region, URLs: []string{w.Sim.URL()}, CA: string(w.Sim.CAPEM()),
		TokenID: token, TokenSecret: pvesim.DefaultTokenSecret,
	}, proxmox.Options{ResponseTimeout: timeout})
	must(w.t, err)
	return c
}

// ResponseTimeout is the least that a Process waits for a call, in real time: in
// proportion it would be shorter than what a busy machine takes.
const ResponseTimeout = 2 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
