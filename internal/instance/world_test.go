// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clientgotesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpenterapis "sigs.k8s.io/karpenter/pkg/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/operations"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	region      = "region-1"
	kubeCluster = "0f0f0f0f-0000-4000-8000-000000000001"
	speed       = 50
)

// world is a simulated Proxmox and a Kubernetes API without a control plane: the
// life of a VM needs no more.
type world struct {
	*WithT
	t    *testing.T
	sim  *pvesim.Simulator
	kube client.Client
	// foreign is what the guests of others looked like at the start.
	foreign map[int]string
	class   *v1alpha1.ProxmoxNodeClass
	// booted are the drives that VMs booted with, by VMID.
	booted *sync.Map
	// firmware are the files that VMs booted with in their firmware interface.
	firmware *sync.Map
}

// watched guests do nothing, and leave a note of what was in their CD drives and in
// their firmware.
type watched struct {
	pvesim.CooperativeGuests
	drives, firmware *sync.Map
}

func (g watched) Boot(ctx context.Context, m *pvesim.Machine) {
	for _, cd := range m.CDROMs() {
		g.drives.Store(m.VMID, cd.Image)
	}
	if len(m.Firmware) > 0 {
		g.firmware.Store(m.VMID, m.Firmware)
	}
	g.CooperativeGuests.Boot(ctx, m)
}

func newWorld(t *testing.T, hosts int, change ...func(*pvesim.Scenario)) *world {
	t.Helper()
	g := NewWithT(t)
	scenario := pvesim.DefaultScenario(hosts)
	for _, c := range change {
		c(scenario)
	}
	booted, firmware := &sync.Map{}, &sync.Map{}
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: speed, Guests: watched{drives: booted, firmware: firmware}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(t.Context())).To(Succeed())
	t.Cleanup(sim.Close)

	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	karpenter := schema.GroupVersion{Group: karpenterapis.Group, Version: "v1"}
	scheme.AddKnownTypes(karpenter, &karpv1.NodeClaim{}, &karpv1.NodeClaimList{})
	metav1.AddToGroupVersion(scheme, karpenter)
	// The default tracker keeps managed fields, and makes a REST mapper for each write.
	tracker := clientgotesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithStatusSubresource(&karpv1.NodeClaim{}).WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "CA"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "templates"}, Data: map[string][]byte{
			"user-data": []byte("#cloud-config\nhostname: {{ .Metadata.Hostname }}\n"),
		}},
	).Build()
	w := &world{WithT: g, t: t, sim: sim, kube: kube, booted: booted, firmware: firmware}
	w.class = &v1alpha1.ProxmoxNodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: v1alpha1.ProxmoxNodeClassSpec{
			InstanceTemplateRef: v1alpha1.InstanceTemplateReference{Kind: "ProxmoxUnmanagedTemplate", Name: "ubuntu"},
			BootDevice:          v1alpha1.BootDevice{Size: "30G"},
			MetadataOptions: v1alpha1.MetadataOptions{
				Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: "kube-system", Name: "templates"},
			},
			SecurityGroups: []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net0"}},
			Tags:           []string{"karpenter"},
		},
	}
	for i := range hosts {
		w.class.Status.SelectedZones = append(w.class.Status.SelectedZones, fmt.Sprintf("%s/pve%d/%d", region, i+1, 9000+i))
	}
	w.foreign = w.guestsOfOthers()
	return w
}

// process is one run of the controller: what it knows dies with it.
type process struct {
	*operations.Operations
	inventory *inventory.Inventory
	types     *instancetype.Provider
	boot      boot.Source
}

func (p *process) checkBootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	return p.boot.Check(ctx, p.inventory.View(), class)
}

// with changes the settings of a process.
func with(change func(*instance.Settings)) func(*setup) {
	return func(s *setup) { s.settings = append(s.settings, change) }
}

// frozen is a process whose view is read once: what it then asks of Proxmox is
// only what its work needs, and can be counted.
func frozen(s *setup) { s.frozen = true }

// inCluster is a process of another Kubernetes cluster.
func inCluster(id string) func(*setup) { return func(s *setup) { s.kubeCluster = id } }

// unhurried is a process that waits in real time, as its guesses about tasks are
// meant; the simulator is faster than that.
func unhurried(s *setup) { s.clock = clock.RealClock{} }

// reading is a process that sees Kubernetes through another client.
func reading(kube client.Client) func(*setup) { return func(s *setup) { s.kube = kube } }

type setup struct {
	frozen      bool
	kube        client.Client
	kubeCluster string
	clock       clock.WithTicker
	hosts       inventory.Settings
	roots       map[string]proxmox.Root
	settings    []func(*instance.Settings)
}

// hurried waits as much shorter as the simulator is faster.
type hurried struct{ clock.RealClock }

func (hurried) After(d time.Duration) <-chan time.Time { return time.After(d / speed) }
func (hurried) NewTimer(d time.Duration) clock.Timer   { return clock.RealClock{}.NewTimer(d / speed) }
func (hurried) Sleep(d time.Duration)                  { time.Sleep(d / speed) }

// process starts anew: its view is fresh, its memory empty.
func (w *world) process(options ...func(*setup)) *process {
	w.t.Helper()
	s := setup{kubeCluster: kubeCluster, clock: hurried{}, kube: w.kube}
	for _, option := range options {
		option(&s)
	}
	c := w.client()
	inv, err := inventory.New([]proxmox.Client{c}, inventory.Options{
		Interval: 100 * time.Millisecond, DetailRange: inventory.VMIDRange{From: 20000, To: 99999}, Settings: s.hosts,
	})
	w.Expect(err).NotTo(HaveOccurred())
	if !s.frozen {
		ctx, cancel := context.WithCancel(w.t.Context())
		stopped := make(chan struct{})
		go func() { defer close(stopped); _ = inv.Start(ctx) }()
		w.t.Cleanup(func() { cancel(); <-stopped })
	}
	w.Expect(inv.RefreshAll(w.t.Context())).To(Succeed())
	types, err := instancetype.New(instancetype.Deps{Inventory: inv, CPULayouts: instancetype.CPULayouts{Roots: slices.Sorted(maps.Keys(s.roots))}})
	w.Expect(err).NotTo(HaveOccurred())
	settings := instance.DefaultSettings()
	settings.TaskTimeout = 20 * time.Second
	settings.LaunchRetryTimeout = 20 * time.Second
	for _, change := range s.settings {
		change(&settings)
	}
	source := boot.Source{Reader: w.kube, Namespace: "kube-system", Version: "v1.36.3", Tokens: &bootdata.Tokens{Client: w.kube}}
	return &process{inventory: inv, types: types, boot: source, Operations: operations.New(operations.Deps{
		Clients: map[string]proxmox.Client{region: c}, Roots: s.roots, Inventory: inv, Types: types, Kube: s.kube,
		Boot: source, Clock: s.clock, KubeCluster: s.kubeCluster, Settings: settings,
	})}
}

func (w *world) client() proxmox.Client {
	w.t.Helper()
	c, err := proxmox.New(proxmox.ClusterConfig{
		Region: region, URLs: []string{w.sim.URL()}, CA: string(w.sim.CAPEM()),
		TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}, proxmox.Options{})
	w.Expect(err).NotTo(HaveOccurred())
	return c
}

// claim makes a NodeClaim as core would, ready for Plan.
func (w *world) claim(name string) *karpv1.NodeClaim {
	w.t.Helper()
	claim := &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uuid.NewString()), Labels: map[string]string{karpv1.NodePoolLabelKey: "pool"}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: "ProxmoxNodeClass", Name: "default"},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{{
				Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"t1.2VCPU-6GB"},
			}},
		},
	}
	w.Expect(w.kube.Create(w.t.Context(), claim)).To(Succeed())
	return claim
}

// planned makes a claim that core would go on with: it has its providerID.
func (w *world) planned(p *process, name string) *karpv1.NodeClaim {
	w.t.Helper()
	claim := w.claim(name)
	in, err := p.Planner.Plan(w.t.Context(), claim, w.class, nil)
	w.Expect(err).NotTo(HaveOccurred())
	claim = w.reread(claim)
	claim.Status.ProviderID = in.ProviderID()
	w.Expect(w.kube.Status().Update(w.t.Context(), claim)).To(Succeed())
	return w.reread(claim)
}

func (w *world) launched(p *process, name string) *karpv1.NodeClaim {
	w.t.Helper()
	claim := w.planned(p, name)
	w.Expect(p.Launcher.Launch(w.t.Context(), claim, w.class)).To(Succeed())
	return w.reread(claim)
}

func (w *world) reread(claim *karpv1.NodeClaim) *karpv1.NodeClaim {
	w.t.Helper()
	out := &karpv1.NodeClaim{}
	w.Expect(w.kube.Get(w.t.Context(), client.ObjectKeyFromObject(claim), out)).To(Succeed())
	return out
}

func (w *world) claimNamed(name string) *karpv1.NodeClaim {
	w.t.Helper()
	return w.reread(&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// deleted calls Delete as core does, until the VM is gone.
func (w *world) deleted(p *process, claim *karpv1.NodeClaim) {
	w.t.Helper()
	w.Eventually(func(g Gomega) {
		gone, err := p.Deleter.Delete(w.t.Context(), claim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(gone).To(BeTrue())
	}).WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(Succeed())
}

// rows are the guests as the simulator lists them now.
func (w *world) rows() []proxmox.GuestRow {
	w.t.Helper()
	resources, err := w.client().Resources(w.t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	return resources.Guests
}

// ours are the VMs in our range.
func (w *world) ours() []proxmox.GuestRow {
	var out []proxmox.GuestRow
	for _, row := range w.rows() {
		if row.VMID >= 20000 {
			out = append(out, row)
		}
	}
	return out
}

// guestsOfOthers remembers configuration and power of everything that is not ours.
func (w *world) guestsOfOthers() map[int]string {
	w.t.Helper()
	c, out := w.client(), map[int]string{}
	for _, row := range w.rows() {
		if row.VMID >= 20000 || row.Kind != proxmox.KindQEMU {
			continue
		}
		cfg, err := c.VMConfig(w.t.Context(), row.Host, row.VMID)
		w.Expect(err).NotTo(HaveOccurred())
		status, err := c.VMStatus(w.t.Context(), row.Host, row.VMID)
		w.Expect(err).NotTo(HaveOccurred())
		raw, err := json.Marshal(cfg.Options)
		w.Expect(err).NotTo(HaveOccurred())
		out[row.VMID] = fmt.Sprintf("%v %s", status.Running, raw)
	}
	return out
}

// expectNothingLeft: no VM, ISO, volume or token of ours, and nobody else's guest touched.
func (w *world) expectNothingLeft() {
	w.t.Helper()
	w.Expect(w.ours()).To(BeEmpty(), "VMs are left")
	w.expectNoBootDrives()
	for i := range w.class.Status.SelectedZones {
		host := fmt.Sprintf("pve%d", i+1)
		volumes, err := w.client().Volumes(w.t.Context(), host, "local-lvm", "images")
		w.Expect(err).NotTo(HaveOccurred())
		for _, volume := range volumes {
			w.Expect(volume.VMID).To(BeNumerically("<", 20000), "volume %s is left", volume.ID)
		}
	}
	w.expectNoTokens()
	w.Expect(w.guestsOfOthers()).To(Equal(w.foreign), "somebody else's guest was touched")
}

func (w *world) expectNoBootDrives() {
	w.t.Helper()
	for i := range w.class.Status.SelectedZones {
		volumes, err := w.client().Volumes(w.t.Context(), fmt.Sprintf("pve%d", i+1), "local", "iso")
		w.Expect(err).NotTo(HaveOccurred())
		for _, volume := range volumes {
			w.Expect(volume.ID).NotTo(ContainSubstring("karpenter-"), "a boot drive is left")
		}
	}
}

func (w *world) expectNoTokens() {
	w.t.Helper()
	secrets := &corev1.SecretList{}
	w.Expect(w.kube.List(w.t.Context(), secrets)).To(Succeed())
	for _, secret := range secrets.Items {
		w.Expect(strings.HasPrefix(secret.Name, "bootstrap-token-")).To(BeFalse(), "token %s is left", secret.Name)
	}
}
