// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestBuildAndDelete(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		report := p.reconcileUntilComplete()
		e.Expect(report.Zones).To(ConsistOf(HaveField("Host", "pve1"), HaveField("Host", "pve2")))
		e.Expect(e.guests()).To(HaveLen(2))
		e.Expect(e.imageFiles()).To(HaveLen(2), "local storage: one per host")
		e.Expect(e.disks()).To(HaveLen(4), "a disk and a cloud-init drive each")
		for _, zone := range report.Zones {
			e.Expect(e.config(zone.Host, zone.VMID).Name()).To(Equal("ubuntu"))
			e.Expect(zone.VMID).To(BeElementOf(1000, 1001), "the lowest free VMIDs")
		}

		_, err := e.Client.DestroyVM(e.T.Context(), "pve2", report.Zones[1].VMID)
		e.Expect(err).NotTo(HaveOccurred())
		e.Clock.Sleep(time.Minute)
		p.refresh()
		e.Expect(p.report().Complete).To(BeFalse())
		p.reconcileUntilComplete()
		e.Expect(e.images.Fetched("/noble.img")).To(Equal(2*imageSize), "built from the existing image")
		p.deleteAll()
	})
}

func TestBuildAllSettings(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		testenv.RunSimulated(t, release, func(t *testing.T) {
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
			vmid := e.process().build().VMID
			options := e.config("pve1", vmid).Options
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
			e.Expect(e.Client.Resources(t.Context())).To(HaveField("Guests", ContainElement(And(HaveField("VMID", vmid), HaveField("Pool", "karpenter")))))
		})
	}
}

// A template is updated in place. It is moved to a resource pool before its ownership mark contains the pool.
func TestUpdateInPlace(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
			s.Agent, s.Tags, s.OnBoot = &v1alpha1.Agent{Enabled: true}, []string{"old"}, new(true)
			s.Network = append(s.Network, v1alpha1.NetworkInterface{Bridge: "vmbr0", Model: "virtio"})
		})
		before := p.build()
		generation := e.mark(before.VMID).Generation
		e.Expect(e.config("pve1", before.VMID).Options).To(HaveKey("scsi30"), "VMs get their boot data from Proxmox")

		e.cdrom = true
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
			s.Agent, s.Tags, s.OnBoot, s.Description, s.ResourcePool = nil, []string{"new"}, nil, "changed", "karpenter"
			s.CPU.Type, s.Network = "host", s.Network[:1]
		})
		e.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "got no worker upid", Count: 1})
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(p.report().Message).To(ContainSubstring("got no worker upid"))
		e.Expect(e.mark(before.VMID).Pool).To(BeEmpty())
		p.reconcileUntil(func(g Gomega) {
			g.Expect(e.config("pve1", before.VMID).Options).To(And(
				HaveKeyWithValue("cpu", "host"), HaveKeyWithValue("tags", "new"), HaveKeyWithValue("description", HavePrefix("changed\n")),
				Not(HaveKey("agent")), Not(HaveKey("onboot")), Not(HaveKey("net1")), Not(HaveKey("scsi30")),
			))
		}, "pve1")
		e.Expect(e.mark(before.VMID).Generation).To(Equal(generation), "nodes do not drift")
		e.Expect(p.build()).To(Equal(before))
		e.Expect(e.mark(before.VMID).Pool).To(Equal("karpenter"))
		e.Expect(p.Inventory().View().Snapshots[region].Guests[before.VMID].Pool).To(Equal("karpenter"))
		e.Expect(e.Sim.CountRequests("PUT", "/pools")).To(Equal(2))
		e.Expect(e.imageFiles()).To(HaveLen(1))
		e.Expect(e.disks()).To(HaveLen(1), "the cloud-init drive is gone")

		e.Sim.ResetRequests()
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(e.Sim.Requests()).To(BeEmpty(), "settings are written once")
	}, withAllResources("8.4"))
}

// Earlier releases added the cloud-init drive to ide2. It stays there, and is deleted when
// no class needs it.
func TestUpdateCloudInitDriveOnIDE(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		vmid := p.build().VMID
		e.Expect(e.Client.UpdateVM(e.T.Context(), "pve1", vmid, proxmox.ConfigChange{Delete: []string{"scsi30"}})).To(Succeed())
		e.setOption(vmid, "ide2", "local-lvm:cloudinit")
		for _, cdrom := range []bool{false, true} {
			e.cdrom = cdrom
			description := fmt.Sprint("boot from our own drive: ", cdrom)
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Description = description })
			p.reconcileUntil(func(g Gomega) {
				options := e.config("pve1", vmid).Options
				g.Expect(options).To(And(HaveKeyWithValue("description", HavePrefix(description+"\n")), Not(HaveKey("scsi30"))))
				g.Expect(options["ide2"] != "").To(Equal(!cdrom))
			}, "pve1")
		}
	})
}

// The grace period of a Template and its image begins when they became obsolete last. A deleted
// ProxmoxTemplate has none.
func TestGracePeriod(t *testing.T) {
	simulated(t, 1, func(e *env, _ *process) {
		e.gracePeriod = time.Hour
		p := e.process()
		require := func(image string) int {
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = e.images.URL + image })
			zone := p.build()
			e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
			return zone.VMID
		}
		noble, other := require("/noble.img"), require("/other.img")
		e.Expect(e.imageFiles()).To(HaveLen(2))
		e.Clock.Advance(40 * time.Minute)
		e.Expect(require("/noble.img")).To(Equal(noble))
		e.Clock.Advance(10 * time.Minute)
		e.Expect(require("/other.img")).To(Equal(other))
		e.Clock.Advance(59 * time.Minute)
		e.Expect(p.reconcile(e.T.Context(), "pve1")).To(Succeed())
		e.Expect(e.guests()).To(HaveLen(2))
		e.Clock.Advance(time.Minute)
		e.Expect(p.ReconcileHost(e.T.Context(), e.desired(), region, "pve1", e.usage)).To(BeZero())
		e.Expect(e.guests()).To(ConsistOf(ContainSubstring("/%d", other)))
		e.Expect(e.imageFiles()).To(ConsistOf(ContainSubstring("other-")))
		p.deleteAll()
	})
}

func TestDownloadOncePerStorage(t *testing.T) {
	simulated(t, 3, func(e *env, p *process) {
		e.useStorages("shared", "local-lvm")
		var done []chan error
		for _, host := range []string{"pve1", "pve2", "pve3"} {
			done = append(done, p.start(e.T.Context(), host))
		}
		for _, built := range done {
			e.Expect(<-built).To(Succeed())
		}
		e.Expect(p.reconcileUntilComplete().Zones).To(HaveLen(3))
		e.Expect(e.images.Fetched("/noble.img")).To(Equal(imageSize))

		other := e.object.DeepCopy()
		other.Name, other.UID, other.Spec.SourceImage.ImageName = "second", "other", "mine.qcow2"
		e.object = other
		e.Expect(e.process().reconcileUntilComplete().Zones).To(HaveLen(3))
		e.Expect(e.images.Fetched("/noble.img")).To(Equal(imageSize), "another template uses the same image under another name")
		e.Expect(e.imageFiles()).To(HaveLen(1))
	}, sharedStorage("nfs", "import"))
}

func TestBuildOnSharedStorage(t *testing.T) {
	simulated(t, 3, func(e *env, p *process) {
		e.useStorages("shared", "local")
		zones := p.reconcileUntilComplete().Zones
		vmid := zones[0].VMID
		e.Expect(zones).To(ConsistOf(HaveField("Host", "pve1"), HaveField("Host", "pve2"), HaveField("Host", "pve3")))
		e.Expect(zones).To(HaveEach(HaveField("VMID", vmid)))
		e.Expect(e.guests()).To(HaveLen(1))
		e.Expect(e.imageFiles()).To(HaveLen(1))

		host := p.hosts()[0]
		offline, _ := p.Inventory().View().Snapshots[region].WithHostOffline(host)
		planned := template.NewRollout(inventory.NewView(map[string]*observed.Snapshot{region: offline}, nil, nil, declared.Settings{}, declared.Records{}), kubeCluster, e.desired()).Relocations()
		e.Expect(planned).To(HaveExactElements(HaveField("Offline.Host", host)))
		e.Expect(e.Sim.HostDown(host, "refused")).To(Succeed())
		p.reconcileUntil(func(g Gomega) {
			g.Expect(p.report().Zones).To(HaveEach(HaveField("VMID", Not(Equal(vmid)))), "recreated on an online host")
		})
		e.Expect(p.hosts()).To(ConsistOf(host, planned[0].To.Host))
		e.Expect(e.Sim.HostUp(host)).To(Succeed())
		e.Eventually(func(g Gomega) {
			p.refresh()
			g.Expect(p.hosts()).To(HaveLen(2))
			required := template.NewRollout(p.Inventory().View(), kubeCluster, e.desired()).Locations[0].Host
			g.Expect(p.PendingHosts(e.desired())).To(ContainElement(HaveField("Host", Not(Equal(required)))), "one of both templates is surplus")
		}).Should(Succeed())
		p.reconcileUntil(func(g Gomega) {
			g.Expect(p.report().Zones).To(HaveLen(3))
			g.Expect(e.guests()).To(HaveLen(1), "only one remains when the host is back online")
		})
	}, sharedStorage("rbd", "images"))
}

// The default name of an interface must not replace one that has this name.
func TestBuildInterfaceNames(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for spec, want := range map[string]string{
		" ":             "net0",
		" , ":           "net0,net1",
		"net3, ":        "net3,net1",
		" ,net0":        "net1,net0",
		"net1, ":        "net1,net0",
		"net1, , ":      "net1,net0,net2",
		"net2, , ":      "net2,net1,net0",
		" ,net0, ,net2": "net1,net0,net3,net2",
	} {
		object := &v1alpha1.ProxmoxTemplate{}
		for n, name := range strings.Split(spec, ",") {
			object.Spec.Network = append(object.Spec.Network, v1alpha1.NetworkInterface{
				Name: strings.TrimSpace(name), Bridge: fmt.Sprintf("vmbr%d", n), Model: "virtio", Address4: fmt.Sprintf("192.0.%d.0/24", n),
			})
		}
		options := template.PlannedConfig(template.NewDesired(object, nil), template.Location{}).Options
		for n, name := range strings.Split(want, ",") {
			g.Expect(options).To(HaveKeyWithValue(name, fmt.Sprintf("virtio,bridge=vmbr%d", n)), spec)
			g.Expect(options).To(HaveKeyWithValue("ipconfig"+strings.TrimPrefix(name, "net"), fmt.Sprintf("ip=192.0.%d.0/24", n)), spec)
		}
	}
}
