// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"errors"
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
	// imageSize is the size of all images.
	imageSize = 64 << 10
	// runInterval is how often tests reconcile.
	runInterval = 2 * time.Second
)

// env is a simulated Proxmox cluster and a ProxmoxTemplate.
type env struct {
	*testenv.Env
	images *testenv.Images
	// object is the ProxmoxTemplate, inUse is why a Template is needed, by VMID.
	object *v1alpha1.ProxmoxTemplate
	inUse  map[int]string
	cdrom  bool
	// gracePeriod is how long processes keep unneeded Templates and images.
	gracePeriod time.Duration
	// builders are the guests of builder VMs.
	builders *builders
	// initial are the guests and volumes at the start.
	initial []string
}

func newEnv(t *testing.T, hosts int, changes ...func(*pvesim.Scenario)) *env {
	t.Helper()
	b := newBuilders()
	e := &env{
		Env:    testenv.NewFake(t, testenv.Hosts(hosts), testenv.Scenario(changes...), testenv.Guests(b)),
		images: testenv.ServeImages(t, imageSize), inUse: map[int]string{}, builders: b,
	}
	b.sim = e.Sim
	e.object = &v1alpha1.ProxmoxTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: templateName, UID: types.UID(uid), Generation: 1},
		Spec: v1alpha1.ProxmoxTemplateSpec{
			SourceImage: v1alpha1.SourceImage{URL: e.images.URL + "/noble.img"},
			StorageIDs:  []string{"local", "local-lvm"},
			Machine:     "q35", BIOS: "seabios", CPU: v1alpha1.CPU{Type: "x86-64-v2-AES"},
			Network: []v1alpha1.NetworkInterface{{Bridge: "vmbr0", Model: "virtio", MTU: 1500}},
		},
	}
	e.initial = e.listObjects()
	return e
}

// simulated runs a parallel test in a simulation of a cluster with a number of hosts.
func simulated(t *testing.T, hosts int, test func(e *env, p *process), changes ...func(*pvesim.Scenario)) {
	t.Helper()
	testenv.Simulated(t, func(t *testing.T) {
		e := newEnv(t, hosts, changes...)
		test(e, e.process())
	})
}

// process is a run of the controller with its in-memory state.
type process struct {
	*template.Provider
	events *testenv.Recorder
	env    *env
}

func (e *env) process() *process { return e.processOf(kubeCluster, e.Client) }

func (e *env) processOf(kubeCluster string, c proxmox.Client) *process {
	e.T.Helper()
	inv, err := inventory.New([]proxmox.Client{c}, inventory.Options{Clock: e.Clock})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(inv.RefreshAll(e.T.Context())).To(Succeed())
	p := &process{events: &testenv.Recorder{}, env: e}
	p.Provider = testenv.NewTemplates(template.Deps{
		Clients: map[string]proxmox.Client{region: c}, Inventory: inv, Clock: e.Clock, KubeCluster: kubeCluster,
		RenderBootData: e.builders.render, Recorder: p.events,
		Settings: template.Settings{BuilderMinRuntime: e.builders.minimum, TaskTimeout: 10 * time.Minute},
	}, e.gracePeriod)
	return p
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
	return template.Usage{Desired: []template.Desired{e.desired()}, InUse: e.usedBy}, nil
}

func (e *env) usedBy(_ string, vmid int) string { return e.inUse[vmid] }

// reconcile runs once on a Host.
func (p *process) reconcile(ctx context.Context, host string) error {
	_, err := p.ReconcileHost(ctx, p.env.desired(), region, host, p.env.usage)
	return err
}

// start runs once on a Host in the background.
func (p *process) start(ctx context.Context, host string) chan error {
	done := make(chan error, 1)
	go func() { done <- p.reconcile(ctx, host) }()
	return done
}

// run runs once on pve1, and polls the cluster.
func (p *process) run(ctx context.Context) error {
	err := p.reconcile(ctx, "pve1")
	p.env.Clock.Sleep(runInterval)
	return errors.Join(err, p.Inventory().RefreshAll(ctx))
}

// refresh polls the cluster.
func (p *process) refresh() {
	p.env.T.Helper()
	p.env.Expect(p.Inventory().RefreshAll(p.env.T.Context())).To(Succeed())
}

// reconcileUntil runs on the given Hosts, by default on all, until the check succeeds.
func (p *process) reconcileUntil(check func(Gomega), hosts ...string) {
	p.env.T.Helper()
	p.env.Eventually(func(g Gomega) {
		for _, host := range slices.Sorted(maps.Keys(p.Inventory().View().Snapshots[region].Hosts)) {
			if len(hosts) == 0 || slices.Contains(hosts, host) {
				g.Expect(p.reconcile(p.env.T.Context(), host)).To(Succeed())
			}
		}
		p.refresh()
		check(g)
	}).WithPolling(runInterval).WithTimeout(15 * time.Minute).Should(Succeed())
}

// reconcileUntilMessage runs on all Hosts until the report has a message.
func (p *process) reconcileUntilMessage(message OmegaMatcher) {
	p.env.T.Helper()
	p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Message).To(message) })
}

// reconcileUntilComplete runs on all Hosts until the report is complete and returns it.
func (p *process) reconcileUntilComplete() template.Report {
	p.env.T.Helper()
	p.reconcileUntil(func(g Gomega) { g.Expect(p.report().Complete).To(BeTrue(), p.report().Message) })
	return p.report()
}

// build runs on one Host until its template is complete, and returns it.
func (p *process) build() v1alpha1.TemplateZone {
	p.env.T.Helper()
	zones := p.reconcileUntilComplete().Zones
	p.env.Expect(zones).To(HaveLen(1))
	return zones[0]
}

// reconcileUntilOnly runs on all Hosts until there are only one template and one image, whose name has the prefix.
func (p *process) reconcileUntilOnly(image string) {
	p.env.T.Helper()
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.env.guests()).To(HaveLen(1))
		g.Expect(p.env.imageFiles()).To(ConsistOf(ContainSubstring(":import/" + image + "-")))
		g.Expect(p.env.disks()).To(HaveLen(2), "a disk and a cloud-init drive each")
	})
}

func (p *process) report(previous ...string) template.Report {
	return p.Report(p.env.desired(), previous)
}

// owned returns the templates that the inventory lists.
func (p *process) owned() []template.Existing {
	return template.ListOwned(p.Inventory().View(), kubeCluster, uid)
}

// deleteObject deletes the object like a user.
func (e *env) deleteObject() {
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
}

// cleanup returns what remains of the deleted object.
func (p *process) cleanup() ([]string, error) {
	return p.Cleanup(p.env.T.Context(), p.env.desired(), p.env.usage)
}

// deleteUntilGone deletes the object and runs until nothing remains.
func (p *process) deleteUntilGone() {
	p.env.T.Helper()
	p.env.deleteObject()
	p.reconcileUntil(func(g Gomega) { g.Expect(p.cleanup()).To(BeEmpty()) })
}

// deleteAll deletes the object and checks that the cluster is as it was at the start.
func (p *process) deleteAll() {
	p.env.T.Helper()
	p.deleteUntilGone()
	p.env.Expect(p.env.listObjects()).To(Equal(p.env.initial), "no orphans")
}

// listObjects returns all guests and volumes of the cluster.
func (e *env) listObjects() []string {
	e.T.Helper()
	seen := map[string]bool{}
	resources, err := e.Client.Resources(e.T.Context())
	e.Expect(err).NotTo(HaveOccurred())
	for _, guest := range e.Sim.Guests() {
		seen[fmt.Sprintf("%s/%d %v", guest.Host, guest.VMID, guest.Options)] = true
	}
	for _, row := range resources.Storages {
		if !row.Available {
			continue
		}
		volumes, err := e.Client.Volumes(e.T.Context(), row.Host, row.Name, "")
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

// created returns the objects of a kind that did not exist at the start.
func (e *env) created(kind string) (out []string) {
	e.T.Helper()
	for _, entry := range e.listObjects() {
		if !slices.Contains(e.initial, entry) && kindOf(entry) == kind {
			out = append(out, entry)
		}
	}
	return out
}

func kindOf(entry string) string {
	switch {
	case strings.Contains(entry, " map["):
		return "guest"
	case strings.Contains(entry, ":import/"):
		return "image"
	case strings.Contains(entry, ":iso/karpenter-builder-"):
		return "boot drive"
	}
	return "disk"
}

func (e *env) guests() []string     { return e.created("guest") }
func (e *env) imageFiles() []string { return e.created("image") }
func (e *env) disks() []string      { return e.created("disk") }
func (e *env) bootDrives() []string { return e.created("boot drive") }

func (e *env) config(host string, vmid int) proxmox.VMConfig {
	e.T.Helper()
	config, err := e.Client.VMConfig(e.T.Context(), host, vmid)
	e.Expect(err).NotTo(HaveOccurred())
	return config
}

func (e *env) mark(vmid int) ownership.Mark {
	e.T.Helper()
	mark, ok := ownership.Read(e.config("pve1", vmid).Description())
	e.Expect(ok).To(BeTrue())
	return mark
}

// setOption changes an option of a VM on pve1 like a user.
func (e *env) setOption(vmid int, option, value string) {
	e.T.Helper()
	e.Expect(e.Client.UpdateVM(e.T.Context(), "pve1", vmid, proxmox.ConfigChange{Set: map[string]string{option: value}})).To(Succeed())
}

// replaceImage changes the source image.
func (e *env) replaceImage() {
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/other.img" })
}

// useMirrors sets the URLs of the source image.
func (e *env) useMirrors(urls ...string) {
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage = v1alpha1.SourceImage{URLs: urls} })
}

// useStorages sets the storages of the spec.
func (e *env) useStorages(ids ...string) {
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = ids })
}

// updateSpec updates the object like a user.
func (e *env) updateSpec(change func(*v1alpha1.ProxmoxTemplateSpec)) {
	e.object = e.object.DeepCopy()
	change(&e.object.Spec)
	e.object.Generation++
}

// sharedStorage adds a storage that is shared by all hosts.
func sharedStorage(kind string, content ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Storages = append(s.Storages, pvesim.Storage{ID: "shared", Type: kind, Content: content, Size: pvesim.TiB})
	}
}

// withAllResources adds the pools, mappings and privileges that a template can use.
func withAllResources(release string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Version = release
		s.Pools = []pvesim.Pool{{ID: "karpenter"}}
		s.Mappings = []pvesim.Mapping{{Kind: "pci", ID: "gpu", Map: []string{"id=10de:2204,node=pve1,path=0000:01:00.0"}}}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use", "Pool.Audit", "Pool.Allocate")
	}
}
