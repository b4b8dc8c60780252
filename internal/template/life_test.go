// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

func TestATemplateIsMadeOnEveryHostAndGoesWithoutATrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	report := p.tended()
	w.Expect(report.Zones).To(ConsistOf(HaveField("Host", "pve1"), HaveField("Host", "pve2")))
	guests, images, disks := w.made()
	w.Expect(guests).To(HaveLen(2))
	w.Expect(images).To(HaveLen(2), "local storage: one per host")
	w.Expect(disks).To(HaveLen(4), "a disk and a cloud-init drive each")
	for _, zone := range report.Zones {
		config := w.config(zone.Host, zone.VMID)
		w.Expect(config.IsTemplate()).To(BeTrue())
		w.Expect(config.Name()).To(Equal("ubuntu"))
		w.Expect(config.Description()).To(HavePrefix("Karpenter managed template, made from "))
		w.Expect(zone.VMID).To(BeNumerically(">=", 1000))
		w.Expect(zone.VMID).To(BeNumerically("<", 1002), "the lowest that are free")
	}
	p.removed()
	w.Expect(w.holdings()).To(Equal(w.before))
}

func TestEverySettingOfTheSpecIsInTheTemplate(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, withEverything(release))
			w.cdrom = true
			w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) {
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
			report := w.process().tended()
			options := w.config("pve1", report.Zones[0].VMID).Options
			for option, value := range map[string]string{
				"bios": "ovmf", "machine": "q35", "cpu": "x86-64-v3,flags=+aes;-pcid", "vga": "serial0,memory=16", "serial0": "socket",
				"agent": "enabled=1,type=isa,freeze-fs-on-backup=0,fstrim_cloned_disks=1", "hostpci0": "mapping=gpu,pcie=1",
				"ipconfig0": "ip=192.168.0.0/24,gw=192.168.0.1", "nameserver": "1.1.1.1", "tags": "karpenter;ubuntu", "onboot": "1", "boot": "order=scsi0",
			} {
				w.Expect(options).To(HaveKeyWithValue(option, value))
			}
			w.Expect(options["net0"]).To(And(HavePrefix("virtio="), ContainSubstring("bridge=vmbr0"), ContainSubstring("tag=7"), ContainSubstring("mtu=1"), ContainSubstring("firewall=1")))
			w.Expect(options["net3"]).To(And(HavePrefix("e1000="), Not(ContainSubstring("mtu"))))
			w.Expect(options["efidisk0"]).To(ContainSubstring("efitype=4m"))
			w.Expect(options["tpmstate0"]).To(ContainSubstring("version=v2.0"))
			w.Expect(options).NotTo(HaveKey("ide2"), "VMs that boot from a drive of ours must not have a second one")
			w.Expect(options["description"]).To(HavePrefix("Ubuntu 24.04\n\nAsk the platform team.\n\n<!--"))
			resources, err := w.client().Resources(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(resources.Guests).To(ContainElement(And(HaveField("VMID", report.Zones[0].VMID), HaveField("Pool", "karpenter"))))
		})
	}
}

func TestSettingsFollowTheSpecInPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, withEverything("8.4"))
	w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.Agent, s.Tags, s.OnBoot = &v1alpha1.Agent{Enabled: true}, []string{"old"}, new(true)
		s.Network = append(s.Network, v1alpha1.NetworkInterface{Bridge: "vmbr0", Model: "virtio"})
	})
	p := w.process()
	before := p.tended().Zones
	generation := w.mark(before[0].VMID).Generation
	w.Expect(w.config("pve1", before[0].VMID).Options).To(HaveKey("ide2"), "its VMs get their boot data from Proxmox")

	w.cdrom = true
	w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.Agent, s.Tags, s.OnBoot, s.Description, s.ResourcePool = nil, []string{"new"}, nil, "changed", "karpenter"
		s.CPU.Type, s.Network = "host", s.Network[:1]
	})
	w.Eventually(func() map[string]string {
		w.Expect(p.tend(t.Context(), "pve1")).To(Succeed())
		return w.config("pve1", before[0].VMID).Options
	}).Should(And(
		HaveKeyWithValue("cpu", "host"), HaveKeyWithValue("tags", "new"), HaveKeyWithValue("description", HavePrefix("changed\n")),
		Not(HaveKey("agent")), Not(HaveKey("onboot")), Not(HaveKey("net1")), Not(HaveKey("ide2")),
	))
	w.Expect(w.mark(before[0].VMID).Generation).To(Equal(generation), "its nodes do not drift")
	w.Expect(p.tended().Zones).To(Equal(before))
	_, images, disks := w.made()
	w.Expect(images).To(HaveLen(1))
	w.Expect(disks).To(HaveLen(1), "the cloud-init drive is gone")

	w.sim.ResetRequests()
	w.Expect(p.tend(t.Context(), "pve1")).To(Succeed())
	w.Expect(w.sim.Requests()).To(BeEmpty(), "what is written is not written again")
}

func TestANewImageIsBuiltBesideTheOldOneWhichGoesWhenNobodyNeedsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	old := p.tended().Zones[0]
	w.inUse[old.VMID] = "3 nodes are linked clones of it"
	w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = w.images.URL + "/plucky.img" })
	w.Expect(p.report(old.String()).Zones).To(ConsistOf(old), "until the new one is there")

	report := p.tended()
	w.Expect(report.Zones[0].VMID).NotTo(Equal(old.VMID))
	w.Expect(report.Message).To(Equal("pve1: template 1000 of an older generation is kept: 3 nodes are linked clones of it"))
	w.Expect(w.mark(report.Zones[0].VMID).Generation).NotTo(Equal(w.mark(old.VMID).Generation))

	delete(w.inUse, old.VMID)
	w.Eventually(func(g Gomega) {
		g.Expect(p.tend(t.Context(), "pve1")).To(Succeed())
		guests, images, disks := w.made()
		g.Expect(guests).To(HaveLen(1))
		g.Expect(images).To(ConsistOf(ContainSubstring("plucky-")))
		g.Expect(disks).To(HaveLen(2))
	}).Should(Succeed())
}

func TestAnImageIsFetchedOncePerStorage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, sharedStorage("nfs", "import"))
	w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local-lvm"} })
	p := w.process()
	done := make(chan error, 3)
	for _, host := range []string{"pve1", "pve2", "pve3"} {
		go func() { done <- p.tend(t.Context(), host) }()
	}
	for range 3 {
		w.Expect(<-done).To(Succeed())
	}
	w.Expect(p.tended().Zones).To(HaveLen(3))
	w.Expect(w.images.Fetched("/noble.img")).To(Equal(64 << 10))

	other := w.object.DeepCopy()
	other.Name, other.UID, other.Spec.SourceImage.ImageName = "second", "other", "mine.qcow2"
	w.object = other
	w.Expect(w.process().tended().Zones).To(HaveLen(3))
	w.Expect(w.images.Fetched("/noble.img")).To(Equal(64<<10), "another template with the same image, whatever it calls it")
	_, images, _ := w.made()
	w.Expect(images).To(HaveLen(1))
}

func TestATemplateOnSharedStorageServesEveryHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, sharedStorage("rbd", "images"))
	w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.StorageIDs = []string{"shared", "local"} })
	p := w.process()
	report := p.tended()
	w.Expect(report.Zones).To(ConsistOf(HaveField("Host", "pve1"), HaveField("Host", "pve2"), HaveField("Host", "pve3")))
	for _, zone := range report.Zones {
		w.Expect(zone.VMID).To(Equal(report.Zones[0].VMID))
	}
	guests, images, _ := w.made()
	w.Expect(guests).To(HaveLen(1))
	w.Expect(images).To(HaveLen(1))

	home, _, _ := strings.Cut(guests[0], "/")
	w.Expect(w.sim.HostDown(home, "refused")).To(Succeed())
	w.Eventually(func(g Gomega) {
		for _, host := range []string{"pve1", "pve2", "pve3"} {
			g.Expect(p.tend(t.Context(), host)).To(Succeed())
		}
		g.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
		for _, zone := range p.report().Zones {
			g.Expect(zone.VMID).NotTo(Equal(report.Zones[0].VMID), "made anew where a host is up")
		}
	}).WithTimeout(20 * time.Second).Should(Succeed())
	w.Expect(w.sim.HostUp(home)).To(Succeed())
	w.Eventually(func(g Gomega) {
		g.Expect(p.tended().Zones).To(HaveLen(3))
		guests, _, _ := w.made()
		g.Expect(guests).To(HaveLen(1), "one is enough once its host is back")
	}).WithTimeout(20 * time.Second).Should(Succeed())
}

func TestATemplateDeletedByHandIsMadeAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	zone := p.tended().Zones[0]
	task, err := w.client().DestroyVM(t.Context(), zone.Host, zone.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(task.Valid()).To(BeTrue())
	w.Eventually(func(g Gomega) {
		g.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
		g.Expect(p.report().Complete).To(BeFalse())
	}).Should(Succeed())
	w.Expect(p.tended().Zones).To(HaveLen(1))
	w.Expect(w.images.Fetched("/noble.img")).To(Equal(64<<10), "from the image that is still there")
}
