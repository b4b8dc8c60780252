// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"fmt"
	"maps"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	region      = testenv.Region
	kubeCluster = "0f0f0f0f-0000-4000-8000-000000000001"
	uid         = "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"
	// templateName is also the name of builder VMs.
	templateName = "ubuntu"
)

// env is a simulated Proxmox cluster without Kubernetes.
type env struct {
	*WithT
	t      *testing.T
	sim    *pvesim.Simulator
	images *testenv.Images
	// reader reads what is in Proxmox.
	reader proxmox.Client
	// object is the ProxmoxTemplate, inUse is why a Template is needed, by VMID.
	object *v1alpha1.ProxmoxTemplate
	inUse  map[int]string
	cdrom  bool
	// builders are the guests of builder VMs.
	builders *builders
	// initial are the guests and volumes at the start.
	initial []string
}

func newEnv(t *testing.T, hosts int, changes ...func(*pvesim.Scenario)) *env {
	t.Helper()
	scenario := pvesim.DefaultScenario(hosts)
	for _, change := range changes {
		change(scenario)
	}
	e := &env{WithT: NewWithT(t), t: t, images: testenv.ServeImages(t, 64<<10), inUse: map[int]string{}, builders: newBuilders()}
	e.sim = testenv.StartSimulator(t, scenario, pvesim.Options{Speed: testenv.Speed, Guests: e.builders})
	e.builders.sim = e.sim
	e.object = &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: templateName, UID: types.UID(uid), Generation: 1},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: e.images.URL + "/noble.img"},
			StorageIDs:  []string{"local", "local-lvm"},
			Machine:     "q35", BIOS: "seabios", CPU: v1alpha1.CPU{Type: "x86-64-v2-AES"},
			Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0", Model: "virtio", MTU: 1500}},
		},
	}
	e.reader = e.client()
	e.initial = e.listObjects()
	return e
}

// process is a run of the controller with its in-memory state.
type process struct {
	*template.Provider
	events *testenv.Recorder
	env    *env
}

func (e *env) process() *process { return e.processOf(kubeCluster, e.client()) }

func (e *env) processOf(kubeCluster string, c proxmox.Client) *process {
	e.t.Helper()
	inv, err := inventory.New([]proxmox.Client{c}, inventory.Options{PollInterval: 100 * time.Millisecond, ReadTimeout: time.Minute})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(inv.RefreshAll(e.t.Context())).To(Succeed())
	recorder := &testenv.Recorder{}
	deps := template.Deps{
		Clients: map[string]proxmox.Client{region: c}, Inventory: inv, Clock: e.builders.clock, KubeCluster: kubeCluster,
		RenderBootData: e.builders.render, Recorder: recorder, Settings: template.Settings{BuilderMinRuntime: e.builders.minimum},
	}
	return &process{Provider: testenv.NewTemplates(deps, 0), events: recorder, env: e}
}

func (e *env) client() proxmox.Client {
	e.t.Helper()
	return testenv.NewClient(e.t, testenv.ClusterConfig(e.sim, region), proxmox.Options{})
}

func (e *env) desired() template.Desired {
	class := v1alpha1.ProxmoxNodeClass{}
	class.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: e.object.Name}
	if e.cdrom {
		class.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeCDROM
	}
	return template.NewDesired(e.object, []v1alpha1.ProxmoxNodeClass{class})
}

func (e *env) usage(context.Context) (template.Usage, error) {
	return template.Usage{Desired: []template.Desired{e.desired()}, InUse: func(_ string, vmid int) string { return e.inUse[vmid] }}, nil
}

// reconcile runs once on a Host.
func (p *process) reconcile(ctx context.Context, host string) error {
	_, err := p.ReconcileHost(ctx, p.env.desired(), region, host, p.env.usage)
	return err
}

// reconcileUntilComplete runs on all Hosts until the report is complete and returns it.
func (p *process) reconcileUntilComplete() template.Report {
	p.env.t.Helper()
	var report template.Report
	p.reconcileUntil(func(g Gomega) {
		report = p.report()
		g.Expect(report.Complete).To(BeTrue(), report.Message)
	})
	return report
}

// reconcileUntil runs on all Hosts until the check succeeds.
func (p *process) reconcileUntil(check func(Gomega)) {
	p.env.t.Helper()
	p.env.Eventually(func(g Gomega) {
		for host := range p.Inventory().View().Snapshots[region].Hosts {
			g.Expect(p.reconcile(p.env.t.Context(), host)).To(Succeed())
		}
		g.Expect(p.Inventory().RefreshAll(p.env.t.Context())).To(Succeed())
		check(g)
	}).WithTimeout(2 * time.Minute).WithPolling(50 * time.Millisecond).Should(Succeed())
}

// reconcileFirstHostUntil runs on pve1 only until the check succeeds.
func (p *process) reconcileFirstHostUntil(check func(Gomega)) {
	p.env.t.Helper()
	p.env.Eventually(func(g Gomega) {
		g.Expect(p.reconcile(p.env.t.Context(), "pve1")).To(Succeed())
		check(g)
	}).WithTimeout(2 * time.Minute).WithPolling(50 * time.Millisecond).Should(Succeed())
}

func (p *process) report(previous ...string) template.Report {
	return p.Report(p.env.desired(), previous)
}

// deleteUntilGone deletes the object and runs until nothing remains.
func (p *process) deleteUntilGone() {
	p.env.t.Helper()
	now := metav1.Now()
	p.env.object.DeletionTimestamp = &now
	p.reconcileUntil(func(g Gomega) {
		remaining, err := p.Cleanup(p.env.t.Context(), p.env.desired(), p.env.usage)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(remaining).To(BeEmpty())
	})
}

// listObjects returns all guests and volumes of the cluster.
func (e *env) listObjects() []string {
	e.t.Helper()
	c, seen := e.reader, map[string]bool{}
	resources, err := c.Resources(e.t.Context())
	e.Expect(err).NotTo(HaveOccurred())
	online := map[string]bool{}
	for _, host := range resources.Hosts {
		online[host.Name] = host.Online
	}
	for _, guest := range resources.Guests {
		if !online[guest.Host] {
			continue
		}
		config, err := c.VMConfig(e.t.Context(), guest.Host, guest.VMID)
		e.Expect(err).NotTo(HaveOccurred())
		seen[fmt.Sprintf("%s/%d %v", guest.Host, guest.VMID, config.Options)] = true
	}
	for _, row := range resources.Storages {
		if !row.Available {
			continue
		}
		volumes, err := c.Volumes(e.t.Context(), row.Host, row.Name, "")
		e.Expect(err).NotTo(HaveOccurred())
		for _, volume := range volumes {
			host := row.Host
			if row.Shared {
				host = "shared"
			}
			seen[host+"/"+volume.ID] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// createdObjects returns the objects that did not exist at the start.
func (e *env) createdObjects() (guests, images, disks []string) {
	e.t.Helper()
	for _, entry := range e.listObjects() {
		switch {
		case slices.Contains(e.initial, entry):
		case strings.Contains(entry, " map["):
			guests = append(guests, entry)
		case strings.Contains(entry, ":import/"):
			images = append(images, entry)
		case strings.Contains(entry, ":"):
			disks = append(disks, entry)
		}
	}
	return guests, images, disks
}

func (e *env) config(host string, vmid int) proxmox.VMConfig {
	e.t.Helper()
	config, err := e.reader.VMConfig(e.t.Context(), host, vmid)
	e.Expect(err).NotTo(HaveOccurred())
	return config
}

func (e *env) mark(vmid int) ownership.Mark {
	e.t.Helper()
	mark, ok := ownership.Read(e.config("pve1", vmid).Description())
	e.Expect(ok).To(BeTrue())
	return mark
}

// updateSpec updates the object like a user.
func (e *env) updateSpec(change func(*v1alpha1.ProxmoxTemplateSpec)) {
	e.object = e.object.DeepCopy()
	change(&e.object.Spec)
	e.object.Generation++
}
