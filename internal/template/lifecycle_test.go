// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestBuildAndDelete(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	p := e.process()
	report := p.reconcileUntilComplete()
	e.Expect(report.Zones).To(ConsistOf(HaveField("Host", "pve1"), HaveField("Host", "pve2")))
	guests, images, disks := e.createdObjects()
	e.Expect(guests).To(HaveLen(2))
	e.Expect(images).To(HaveLen(2), "local storage: one per host")
	e.Expect(disks).To(HaveLen(4), "a disk and a cloud-init drive each")
	for _, zone := range report.Zones {
		config := e.config(zone.Host, zone.VMID)
		e.Expect(config.IsTemplate()).To(BeTrue())
		e.Expect(config.Name()).To(Equal("ubuntu"))
		e.Expect(config.Description()).To(HavePrefix("Karpenter managed template, made from "))
		e.Expect(zone.VMID).To(BeNumerically(">=", 1000))
		e.Expect(zone.VMID).To(BeNumerically("<", 1002), "the lowest free VMIDs")
	}
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

func TestBuildAllSettings(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1, withAllResources(release))
			e.cdrom = true
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
				s.Description, s.BIOS, s.TPM = "Ubuntu 24.04\n\nAsk the platform team.", "ovmf", &v1alpha1.TPM{Version: "v2.0"}
				s.Agent = &v1alpha1.Agent{Enabled: true, Type: "isa", FSFreezeOnBackup: new(false), FSTrimClonedDisks: new(true)}
				s.CPU = v1alpha1.CPU{Type: "x86-64-v3", Flags: v1alpha1.CPUFlags{"+aes", "-pcid"}}
				s.VGA = &v1alpha1.VGA{Type: "serial0", Memory: new(int32(16))}
				s.Network = []v1alpha1.NetworkInterface{
					{Bridge: "vmbr0", Model: "virtio", MTU: 1, VLAN: 7, Firewall: new(true), Address4: "192.168.0.0/24", Gateway4: "192.168.0.1", DNSServers: []string{"1.1.1.1"}},
					{Name: "net3", Bridge: "vmbr0", Model: "e1000", MTU: 1500},
				}
				s.PCIDevices = []v1alpha1.PCIDevice{{Mapping: "gpu", PCIe: new(true)}}
				s.Tags, s.ResourcePool, s.OnBoot = []string{"karpenter", "ubuntu"}, "karpenter", new(true)
			})
			report := e.process().reconcileUntilComplete()
			options := e.config("pve1", report.Zones[0].VMID).Options
			for option, value := range map[string]string{
				"bios": "ovmf", "machine": "q35", "cpu": "x86-64-v3,flags=+aes;-pcid", "vga": "serial0,memory=16", "serial0": "socket",
				"agent": "enabled=1,type=isa,freeze-fs-on-backup=0,fstrim_cloned_disks=1", "hostpci0": "mapping=gpu,pcie=1",
				"ipconfig0": "ip=192.168.0.0/24,gw=192.168.0.1", "nameserver": "1.1.1.1", "tags": "karpenter;ubuntu", "onboot": "1", "boot": "order=scsi0",
			} {
				e.Expect(options).To(HaveKeyWithValue(option, value))
			}
			e.Expect(options["net0"]).To(And(HavePrefix("virtio="), ContainSubstring("bridge=vmbr0"), ContainSubstring("tag=7"), ContainSubstring("mtu=1"), ContainSubstring("firewall=1")))
			e.Expect(options["net3"]).To(And(HavePrefix("e1000="), Not(ContainSubstring("mtu"))))
			e.Expect(options["efidisk0"]).To(ContainSubstring("efitype=4m"))
			e.Expect(options["tpmstate0"]).To(ContainSubstring("version=v2.0"))
			e.Expect(options).NotTo(HaveKey("scsi30"), "VMs that boot from our own drive must not have a second one")
			e.Expect(options["description"]).To(HavePrefix("Ubuntu 24.04\n\nAsk the platform team.\n\n<!--"))
			resources, err := e.client().Resources(t.Context())
			e.Expect(err).NotTo(HaveOccurred())
			e.Expect(resources.Guests).To(ContainElement(And(HaveField("VMID", report.Zones[0].VMID), HaveField("Pool", "karpenter"))))
		})
	}
}

func TestUpdateInPlace(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, withAllResources("8.4"))
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.Agent, s.Tags, s.OnBoot = &v1alpha1.Agent{Enabled: true}, []string{"old"}, new(true)
		s.Network = append(s.Network, v1alpha1.NetworkInterface{Bridge: "vmbr0", Model: "virtio"})
	})
	p := e.process()
	before := p.reconcileUntilComplete().Zones
	generation := e.mark(before[0].VMID).Generation
	e.Expect(e.config("pve1", before[0].VMID).Options).To(HaveKey("scsi30"), "VMs get their boot data from Proxmox")

	e.cdrom = true
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.Agent, s.Tags, s.OnBoot, s.Description, s.ResourcePool = nil, []string{"new"}, nil, "changed", "karpenter"
		s.CPU.Type, s.Network = "host", s.Network[:1]
	})
	e.Eventually(func() map[string]string {
		e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
		return e.config("pve1", before[0].VMID).Options
	}).Should(And(
		HaveKeyWithValue("cpu", "host"), HaveKeyWithValue("tags", "new"), HaveKeyWithValue("description", HavePrefix("changed\n")),
		Not(HaveKey("agent")), Not(HaveKey("onboot")), Not(HaveKey("net1")), Not(HaveKey("scsi30")),
	))
	e.Expect(e.mark(before[0].VMID).Generation).To(Equal(generation), "nodes do not drift")
	e.Expect(p.reconcileUntilComplete().Zones).To(Equal(before))
	_, images, disks := e.createdObjects()
	e.Expect(images).To(HaveLen(1))
	e.Expect(disks).To(HaveLen(1), "the cloud-init drive is gone")

	e.sim.ResetRequests()
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(e.sim.Requests()).To(BeEmpty(), "settings are written once")
}

// A template is moved to a resource pool before its ownership mark contains the pool.
func TestUpdateResourcePoolInterrupted(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1, withAllResources("8.4"))
	p := e.process()
	vmid := p.reconcileUntilComplete().Zones[0].VMID
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.ResourcePool = "karpenter" })
	testenv.AddFault(t, e.sim, pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "got no worker upid", Count: 1})
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(p.report().Message).To(ContainSubstring("got no worker upid"))
	e.Expect(e.mark(vmid).Pool).To(BeEmpty())
	e.Expect(p.reconcileUntilComplete().Zones).To(ConsistOf(HaveField("VMID", vmid)))
	e.Expect(e.mark(vmid).Pool).To(Equal("karpenter"))
	e.Expect(p.Inventory().View().Snapshots[region].Guests[vmid].Pool).To(Equal("karpenter"))
	e.Expect(e.sim.CountRequests("PUT", "/pools")).To(Equal(2))
}

// Earlier releases added the cloud-init drive to ide2. It stays there, and is deleted when
// no class needs it.
func TestUpdateCloudInitDriveOnIDE(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p := e.process()
	vmid := p.reconcileUntilComplete().Zones[0].VMID
	e.Expect(e.client().UpdateVM(t.Context(), "pve1", vmid, proxmox.ConfigChange{Delete: []string{"scsi30"}})).To(Succeed())
	e.Expect(e.client().UpdateVM(t.Context(), "pve1", vmid, proxmox.ConfigChange{Set: map[string]string{"ide2": "local-lvm:cloudinit"}})).To(Succeed())
	for _, test := range []struct {
		description string
		cdrom       bool
		drives      OmegaMatcher
	}{
		{"kept", false, And(HaveKey("ide2"), Not(HaveKey("scsi30")))},
		{"deleted", true, And(Not(HaveKey("ide2")), Not(HaveKey("scsi30")))},
	} {
		e.cdrom = test.cdrom
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Description = test.description })
		e.Eventually(func() map[string]string {
			e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
			return e.config("pve1", vmid).Options
		}).Should(And(HaveKeyWithValue("description", HavePrefix(test.description+"\n")), test.drives))
	}
}

func TestReplaceImage(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p := e.process()
	old := p.reconcileUntilComplete().Zones[0]
	e.inUse[old.VMID] = "3 nodes are linked clones of it"
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/plucky.img" })
	e.Expect(p.report(old.String()).Zones).To(ConsistOf(old), "until the new template exists")

	report := p.reconcileUntilComplete()
	e.Expect(report.Zones[0].VMID).NotTo(Equal(old.VMID))
	e.Expect(report.Message).To(Equal("pve1: template 1000 is obsolete and retained: 3 nodes are linked clones of it"))
	e.Expect(e.mark(report.Zones[0].VMID).Generation).NotTo(Equal(e.mark(old.VMID).Generation))

	delete(e.inUse, old.VMID)
	e.Eventually(func(g Gomega) {
		g.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
		guests, images, disks := e.createdObjects()
		g.Expect(guests).To(HaveLen(1))
		g.Expect(images).To(ConsistOf(ContainSubstring("plucky-")))
		g.Expect(disks).To(HaveLen(2))
	}).Should(Succeed())
}

// processWithGracePeriod returns a process that keeps unneeded Templates and images for an hour,
// and its clock.
func (e *env) processWithGracePeriod() (*process, *testenv.Clock) {
	p, clock := e.process(), testenv.NewSteppedClock(testenv.Speed)
	p.Provider = testenv.NewTemplates(template.Deps{
		Clients: map[string]proxmox.Client{region: e.client()}, Inventory: p.Inventory(), Clock: clock, KubeCluster: kubeCluster, Recorder: p.events,
	}, time.Hour)
	return p, clock
}

// An image is kept for the grace period after it became unused, except the image of a
// deleted ProxmoxTemplate.
func TestImageGracePeriod(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p, clock := e.processWithGracePeriod()
	images := func() []string {
		_, images, _ := e.createdObjects()
		return images
	}
	p.reconcileUntilComplete()
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + "/plucky.img" })
	p.reconcileUntilComplete()
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(images()).To(ConsistOf(ContainSubstring("noble-"), ContainSubstring("plucky-")))

	clock.Advance(time.Hour)
	after, err := p.ReconcileHost(t.Context(), e.desired(), region, "pve1", e.usage)
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(after).To(BeZero())
	e.Expect(images()).To(ConsistOf(ContainSubstring("plucky-")))
	p.deleteUntilGone()
	e.Expect(images()).To(BeEmpty())
}

// A ProxmoxTemplate whose images cannot be listed is not deleted.
func TestDeleteWithHiddenImages(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p := e.process()
	p.reconcileUntilComplete()
	testenv.AddFault(t, e.sim, pvesim.Fault{
		Method: "GET", Path: "/nodes/*/storage/local/content", Status: 403, Message: "Permission check failed (/storage/local, Datastore.Audit|Datastore.AllocateSpace)",
	})
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	p.reconcileUntil(func(g Gomega) {
		_, err := p.Cleanup(t.Context(), e.desired(), e.usage)
		g.Expect(err).To(MatchError(ContainSubstring("privilege Datastore.Audit|Datastore.AllocateSpace is missing on /storage/local")))
	})
	e.sim.ClearFaults()
	p.deleteUntilGone()
	e.Expect(e.listObjects()).To(Equal(e.initial))
}

// The grace period of a Template begins when it became obsolete last.
func TestTemplateGracePeriod(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p, clock := e.processWithGracePeriod()
	require := func(image string) int {
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + image })
		report := p.reconcileUntilComplete()
		e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
		return report.Zones[0].VMID
	}
	guests := func() []string {
		guests, _, _ := e.createdObjects()
		return guests
	}
	noble := require("/noble.img")
	plucky := require("/plucky.img")
	clock.Advance(40 * time.Minute)
	e.Expect(require("/noble.img")).To(Equal(noble))
	clock.Advance(10 * time.Minute)
	e.Expect(require("/plucky.img")).To(Equal(plucky))
	clock.Advance(15 * time.Minute)
	e.Expect(p.reconcile(t.Context(), "pve1")).To(Succeed())
	e.Expect(guests()).To(HaveLen(2))
	clock.Advance(45 * time.Minute)
	p.reconcileFirstHostUntil(func(g Gomega) { g.Expect(guests()).To(ConsistOf(ContainSubstring("/%d", plucky))) })
}

func TestDownloadOncePerStorage(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 3, sharedStorage("nfs", "import"))
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local-lvm"} })
	p := e.process()
	done := make(chan error, 3)
	for _, host := range []string{"pve1", "pve2", "pve3"} {
		go func() { done <- p.reconcile(t.Context(), host) }()
	}
	for range 3 {
		e.Expect(<-done).To(Succeed())
	}
	e.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(3))
	e.Expect(e.images.Fetched("/noble.img")).To(Equal(64 << 10))

	other := e.object.DeepCopy()
	other.Name, other.UID, other.Spec.SourceImage.ImageName = "second", "other", "mine.qcow2"
	e.object = other
	e.Expect(e.process().reconcileUntilComplete().Zones).To(HaveLen(3))
	e.Expect(e.images.Fetched("/noble.img")).To(Equal(64<<10), "another template uses the same image under another name")
	_, images, _ := e.createdObjects()
	e.Expect(images).To(HaveLen(1))
}

func TestBuildOnSharedStorage(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 3, sharedStorage("rbd", "images"))
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local"} })
	p := e.process()
	report := p.reconcileUntilComplete()
	e.Expect(report.Zones).To(ConsistOf(HaveField("Host", "pve1"), HaveField("Host", "pve2"), HaveField("Host", "pve3")))
	for _, zone := range report.Zones {
		e.Expect(zone.VMID).To(Equal(report.Zones[0].VMID))
	}
	guests, images, _ := e.createdObjects()
	e.Expect(guests).To(HaveLen(1))
	e.Expect(images).To(HaveLen(1))

	host, _, _ := strings.Cut(guests[0], "/")
	view := p.Inventory().View()
	offline, _ := view.Snapshots[region].WithHostOffline(host)
	planned := template.Relocations(inventory.NewView(map[string]*inventory.Snapshot{region: offline}, nil, nil, inventory.Settings{}),
		e.desired(), template.ListOwned(view, kubeCluster, uid))
	e.Expect(planned).To(HaveExactElements(HaveField("Offline.Host", host)))
	e.Expect(e.sim.HostDown(host, "refused")).To(Succeed())
	e.Eventually(func(g Gomega) {
		for _, host := range []string{"pve1", "pve2", "pve3"} {
			g.Expect(p.reconcile(t.Context(), host)).To(Succeed())
		}
		g.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
		for _, zone := range p.report().Zones {
			g.Expect(zone.VMID).NotTo(Equal(report.Zones[0].VMID), "recreated on an online host")
		}
	}).Should(Succeed())
	e.Expect(template.ListOwned(p.Inventory().View(), kubeCluster, uid)).To(ConsistOf(HaveField("Host", host), HaveField("Host", planned[0].To.Host)))
	e.Expect(e.sim.HostUp(host)).To(Succeed())
	e.Eventually(func(g Gomega) {
		g.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
		owned := template.ListOwned(p.Inventory().View(), kubeCluster, string(e.object.UID))
		g.Expect(owned).To(HaveLen(2))
		required := template.Locations(p.Inventory().View(), e.desired(), owned)[0].Host
		g.Expect(p.PendingHosts(e.desired())).To(ContainElement(HaveField("Host", Not(Equal(required)))), "one of both templates is surplus")
	}).Should(Succeed())
	e.Eventually(func(g Gomega) {
		g.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(3))
		guests, _, _ := e.createdObjects()
		g.Expect(guests).To(HaveLen(1), "only one remains when the host is back online")
	}).Should(Succeed())
}

func TestBuildAfterManualDeletion(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	p := e.process()
	zone := p.reconcileUntilComplete().Zones[0]
	task, err := e.client().DestroyVM(t.Context(), zone.Host, zone.VMID)
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(task.Valid()).To(BeTrue())
	e.Eventually(func(g Gomega) {
		g.Expect(p.Inventory().RefreshAll(t.Context())).To(Succeed())
		g.Expect(p.report().Complete).To(BeFalse())
	}).Should(Succeed())
	e.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(1))
	e.Expect(e.images.Fetched("/noble.img")).To(Equal(64<<10), "built from the existing image")
}
