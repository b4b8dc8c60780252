// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	region      = "region-1"
	kubeCluster = "0f0f0f0f-0000-4000-8000-000000000001"
	uid         = "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"
)

// world is a simulated Proxmox: the making of templates needs no Kubernetes.
type world struct {
	*WithT
	t      *testing.T
	sim    *pvesim.Simulator
	images *testenv.Images
	// object is the template that is asked for; in use are those that somebody needs.
	object *v1alpha1.ProxmoxTemplate
	inUse  map[int]string
	cdrom  bool
	// before is what Proxmox held at the start.
	before []string
}

func newWorld(t *testing.T, hosts int, changes ...func(*pvesim.Scenario)) *world {
	t.Helper()
	scenario := pvesim.DefaultScenario(hosts)
	for _, change := range changes {
		change(scenario)
	}
	sim, err := pvesim.New(scenario, pvesim.Options{Speed: testenv.Speed})
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sim.Start(t.Context())).To(Succeed())
	t.Cleanup(sim.Close)
	w := &world{WithT: g, t: t, sim: sim, images: testenv.ServeImages(t, 64<<10), inUse: map[int]string{}}
	w.object = &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "ubuntu", UID: types.UID(uid), Generation: 1},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: w.images.URL + "/noble.img"},
			StorageIDs:  []string{"local", "local-lvm"},
			Machine:     "q35", BIOS: "seabios", CPU: v1alpha1.CPU{Type: "x86-64-v2-AES"},
			Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0", Model: "virtio", MTU: 1500}},
		},
	}
	w.before = w.holdings()
	return w
}

// process is one run of the controller: what it knows dies with it.
type process struct {
	*template.Provider
	w *world
}

func (w *world) process() *process {
	w.t.Helper()
	c := w.client()
	inv, err := inventory.New([]proxmox.Client{c}, inventory.Options{Interval: 100 * time.Millisecond})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(inv.RefreshAll(w.t.Context())).To(Succeed())
	settings := template.Settings{
		VMIDs: placement.Range{From: 1000, To: 19999}, Builds: 16, TaskTimeout: 20 * time.Second, Grace: 0,
	}
	deps := template.Deps{
		Clients: map[string]proxmox.Client{region: c}, Inventory: inv, Clock: &testenv.Clock{}, KubeCluster: kubeCluster, Settings: settings,
	}
	return &process{Provider: template.NewProvider(deps), w: w}
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

func (w *world) wish() template.Desired {
	class := v1alpha1.ProxmoxNodeClass{}
	class.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: w.object.Name}
	if w.cdrom {
		class.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeCDROM
	}
	return template.NewDesired(w.object, []v1alpha1.ProxmoxNodeClass{class})
}

func (w *world) around() template.Usage {
	return template.Usage{Desired: []template.Desired{w.wish()}, InUse: func(_ string, vmid int) string { return w.inUse[vmid] }}
}

// tend runs once on a Host.
func (p *process) tend(ctx context.Context, host string) error {
	_, err := p.ReconcileHost(ctx, p.w.wish(), region, host, p.w.around())
	return err
}

// tended runs on all Hosts until the report is complete, and answers it.
func (p *process) tended() template.Report {
	p.w.t.Helper()
	var report template.Report
	p.w.Eventually(func(g Gomega) {
		for host := range p.Inventory.View().Snapshots[region].Hosts {
			g.Expect(p.tend(p.w.t.Context(), host)).To(Succeed())
		}
		g.Expect(p.Inventory.RefreshAll(p.w.t.Context())).To(Succeed())
		report = p.report()
		g.Expect(report.Complete).To(BeTrue(), report.Message)
	}).WithTimeout(30 * time.Second).WithPolling(50 * time.Millisecond).Should(Succeed())
	return report
}

func (p *process) report(before ...string) template.Report { return p.Report(p.w.wish(), before) }

// removed lets a deleted template go.
func (p *process) removed() {
	p.w.t.Helper()
	now := metav1.Now()
	p.w.object.DeletionTimestamp = &now
	p.w.Eventually(func(g Gomega) {
		for host := range p.Inventory.View().Snapshots[region].Hosts {
			g.Expect(p.tend(p.w.t.Context(), host)).To(Succeed())
		}
		g.Expect(p.Inventory.RefreshAll(p.w.t.Context())).To(Succeed())
		remains, err := p.Cleanup(p.w.t.Context(), p.w.wish(), p.w.around())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(remains).To(BeEmpty())
	}).WithTimeout(30 * time.Second).WithPolling(50 * time.Millisecond).Should(Succeed())
}

// holdings are all guests and volumes of the cluster, whoever made them.
func (w *world) holdings() []string {
	w.t.Helper()
	c, seen := w.client(), map[string]bool{}
	resources, err := c.Resources(w.t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	online := map[string]bool{}
	for _, host := range resources.Hosts {
		online[host.Name] = host.Online
	}
	for _, guest := range resources.Guests {
		if !online[guest.Host] {
			continue
		}
		config, err := c.VMConfig(w.t.Context(), guest.Host, guest.VMID)
		w.Expect(err).NotTo(HaveOccurred())
		seen[fmt.Sprintf("%s/%d %v", guest.Host, guest.VMID, config.Options)] = true
	}
	for _, row := range resources.Storages {
		if !row.Available {
			continue
		}
		volumes, err := c.Volumes(w.t.Context(), row.Host, row.Name, "")
		w.Expect(err).NotTo(HaveOccurred())
		for _, volume := range volumes {
			host := row.Host
			if row.Shared {
				host = "shared"
			}
			seen[host+"/"+volume.ID] = true
		}
	}
	var out []string
	for entry := range seen {
		out = append(out, entry)
	}
	slices.Sort(out)
	return out
}

// made are the holdings that were not there at the start.
func (w *world) made() (guests, images, disks []string) {
	w.t.Helper()
	for _, entry := range w.holdings() {
		switch {
		case slices.Contains(w.before, entry):
		case strings.Contains(entry, ":import/"):
			images = append(images, entry)
		case strings.Contains(entry, ":"):
			if !strings.Contains(entry, " map[") {
				disks = append(disks, entry)
				continue
			}
			guests = append(guests, entry)
		}
	}
	return guests, images, disks
}

func (w *world) config(host string, vmid int) proxmox.VMConfig {
	w.t.Helper()
	config, err := w.client().VMConfig(w.t.Context(), host, vmid)
	w.Expect(err).NotTo(HaveOccurred())
	return config
}

func (w *world) mark(vmid int) ownership.Mark {
	w.t.Helper()
	mark, ok := ownership.Read(w.config("pve1", vmid).Description())
	w.Expect(ok).To(BeTrue())
	return mark
}

// edit changes the object as a user would.
func (w *world) edit(change func(*v1alpha1.ProxmoxTemplateSpec)) {
	w.object = w.object.DeepCopy()
	change(&w.object.Spec)
	w.object.Generation++
}
