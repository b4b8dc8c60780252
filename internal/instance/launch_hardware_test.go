// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withHardware adds mappings and the privileges that hardware options need.
func withHardware(s *pvesim.Scenario) {
	s.Mappings = []pvesim.Mapping{
		{Kind: "usb", ID: "dongle", Map: []string{"node=pve1,id=1234:5678"}},
		{Kind: "pci", ID: "gpu", Map: []string{"node=pve1,path=0000:01:00.0,id=10de:20b0"}},
	}
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use", "Sys.Modify")
}

func TestLaunchHardware(t *testing.T) {
	t.Parallel()
	for release, ksm := range map[string]*bool{"8.4": nil, "9.2": new(false)} {
		testenv.With(testenv.NoPolling(), testenv.Scenario(withHardware, func(s *pvesim.Scenario) {
			s.Version = release
		}, templatesWith(map[string]string{
			// A template that was the VM of a Node has the serial of that VM, which clones inherit.
			"smbios1": proxmox.SMBIOS{UUID: "e536baad-cf78-4543-9034-60295eed2b22", Serial: vmconfig.SMBIOSSerial("older", 123)}.Encode(),
		}))).Subtest(t, release, func(w *testenv.Env, p *testenv.Process) {
			w.NodeClass.Spec.Description = "pool {{ .NodePool }} on {{ .Zone }}"
			w.NodeClass.Spec.Tags = []string{"k8s", "type-{{ .InstanceType | lower }}", `{{ if eq .Region "other" }}other{{ end }}`}
			w.NodeClass.Spec.Hardware = &v1alpha1.Hardware{
				CPUUnits: new(int32(50)), Balloon: new(int32(512)), Hotplug: []string{"disk"},
				Watchdog: &v1alpha1.Watchdog{}, RNG: &v1alpha1.RNG{}, TPM: &v1alpha1.TPMState{},
				USB: []v1alpha1.USBDevice{{Mapping: "dongle"}}, PCI: []v1alpha1.PCIDevice{{Mapping: "gpu"}},
				Agent: &v1alpha1.Agent{Enabled: true}, Startup: &v1alpha1.StartupOrder{Order: new(int32(7))}, KSM: ksm,
			}
			claim := p.Launched("default-a", w.NodeClass)
			in := w.Intent(claim)
			w.Expect(in.Devices).To(Equal([]string{"gpu"}), "devices are planned, so no other VM gets them")
			cfg := w.VMConfig(in)
			w.Expect(cfg.SMBIOS().Serial).To(HavePrefix("h=default-a;"))
			for option, value := range map[string]string{
				"cpuunits": "50", "balloon": "512", "hotplug": "disk", "watchdog": "model=i6300esb,action=reset", "rng0": "source=/dev/urandom",
				"usb0": "mapping=dongle", "hostpci0": "mapping=gpu", "agent": "enabled=1", "startup": "order=7",
			} {
				w.Expect(cfg.Options).To(HaveKeyWithValue(option, value))
			}
			w.Expect(cfg.Options["allow-ksm"]).To(Equal(map[string]string{"9.2": "0"}[release]))
			w.Expect(cfg.Options["tpmstate0"]).To(ContainSubstring("version=v2.0"))
			w.Expect(cfg.Tags()).To(HaveLen(2), "a tag that renders to nothing is omitted")
			w.Expect(cfg.Tags()).To(ContainElement(HavePrefix("type-")))
			w.Expect(cfg.Description()).To(ContainSubstring(" on " + in.Host + "\n"))
			p.DeleteAll(claim)
		})
	}
}

// encrypted encrypts the memory of VMs, which needs a root login unless the template has it.
var encrypted = &v1alpha1.Hardware{ConfidentialComputing: &v1alpha1.ConfidentialComputing{AMDSEV: &v1alpha1.AMDSEV{Type: "std"}}}

func TestLaunchEncryption(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]testenv.Option{
		"root_login": testenv.AsRoot(), "template": testenv.Scenario(templatesWith(map[string]string{"amd-sev": "type=std"})),
	} {
		testenv.With(testenv.NoPolling(), option).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			w.NodeClass.Spec.Hardware = encrypted
			w.Expect(w.VMConfig(w.Intent(p.Launched("pool-abc", w.NodeClass))).Options).To(HaveKeyWithValue("amd-sev", "type=std"))
		})
	}
}

// mapped maps the directory /tank/data of a Host.
func mapped(host string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Mappings = []pvesim.Mapping{{Kind: "dir", ID: "data", Map: []string{"node=" + host + ",path=/tank/data"}}}
		s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Mapping.Use")
	}
}

func TestLaunchPlan9Shares(t *testing.T) {
	const inherited = "-no-hpet"
	testenv.With(testenv.NoPolling(), testenv.AsRoot(), testenv.Scenario(mapped("pve1"), templatesWith(map[string]string{
		"args": inherited,
	}))).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.Shares = []v1alpha1.Share{{Mapping: "data", Type: v1alpha1.ShareTypePlan9, MountPath: "/mnt/data"}}
		options := w.VMConfig(w.Intent(p.Launched("pool-abc", w.NodeClass))).Options
		w.Expect(options["args"]).To(Equal(inherited + " -virtfs local,id=karpenter-data,path=/tank/data,mount_tag=data,security_model=mapped-xattr"))
		w.Expect(options).NotTo(HaveKey("virtiofs0"))
	})
}

// TestLaunchInterfaces checks that a VM gets the interfaces of its class, with the MAC and the addresses of the plan. After a
// restart the VM is that of the class as it is then. A gateway outside of the subnet is reached through the interface, also
// one of 169.254.0.0/16.
func TestLaunchInterfaces(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[0].Bridges = append(s.Hosts[0].Bridges, pvesim.Bridge{Name: "vmbr1", VLANAware: true, CIDR: "10.1.0.1/24"})
		s.SecurityGroups = []pvesim.SecurityGroup{{Name: "storage"}}
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "storage", Interface: "net1"}}
		w.NodeClass.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
			Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "203.0.113.5/32", Gateway: "169.254.1.1"},
			Address6: &v1alpha1.AddressSource{CIDR: "2001:db8::/64", Gateway: "fe80::1"},
		}, {
			Name: "net1", Address4: &v1alpha1.AddressSource{CIDR: "10.1.0.0/24", Ranges: []string{"10.1.0.7"}},
			InterfaceDevice: v1alpha1.InterfaceDevice{Bridge: "vmbr1", VLAN: new(int32(9)), Trunks: []string{"10-12"}},
			InterfaceRouting: v1alpha1.InterfaceRouting{
				DefaultRoute: new(false), DNSServers: []string{"10.1.0.53"},
				Routes:       []v1alpha1.InterfaceRoute{{To: "10.0.0.0/8", Via: "10.1.0.1", Metric: 50, Table: 100}, {To: "172.16.0.0/12", Via: "10.2.0.1"}},
				PolicyRoutes: []v1alpha1.PolicyRoute{{From: "10.1.0.0/24", Table: 100, Priority: 1000}},
			},
		}}}
		claim := p.Planned("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		w.Expect(in.Network.Addresses()).To(HaveLen(3))
		w.Expect(in.MACs).To(HaveKey("net1"))

		w.NodeClass.Spec.Network.Interfaces[1].Bridge = "vmbr0"
		p = w.StartProcess(testenv.NoPolling())
		w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
		w.Expect(w.Stored(claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationNodeClassHash, w.NodeClass.Hash()), "it does not drift")

		cfg := w.VMConfig(in)
		w.Expect(cfg.Options).To(HaveKeyWithValue("ipconfig1", "ip=10.1.0.7/24"))
		nics := cfg.Network().NICs()
		w.Expect(nics).To(HaveLen(2))
		w.Expect(nics[1]).To(And(HaveField("MAC", in.MACs["net1"]), HaveField("Bridge", "vmbr0"), HaveField("VLAN", 9), HaveField("Trunks", "10-12"),
			HaveField("Model", proxmox.ModelVirtIO), HaveField("Queues", in.Cores), HaveField("Firewall", true)))
		w.Expect(w.Booted(in.VMID).CDROM).To(And(
			ContainSubstring("via: \"169.254.1.1\"\n        on-link: true"),
			ContainSubstring(`via: "fe80::1"`), Not(ContainSubstring("via: \"fe80::1\"\n        on-link: true")),
			ContainSubstring(`- "10.1.0.7/24"`),
			ContainSubstring("routes:\n      - to: \"10.0.0.0/8\"\n        via: \"10.1.0.1\"\n        metric: 50\n        table: 100\n"),
			ContainSubstring("via: \"10.2.0.1\"\n        on-link: true"),
			ContainSubstring("routing-policy:\n      - table: 100\n        priority: 1000\n        from: \"10.1.0.0/24\""),
			ContainSubstring(`addresses: ["10.1.0.53"]`), ContainSubstring("accept-ra: false")))
		p.DeleteAll(claim)
	})
}

// withStorage adds a storage to all hosts.
func withStorage(id, storageType string, size pvesim.Size) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Storages = append(s.Storages, pvesim.Storage{ID: id, Type: storageType, Content: []string{"images"}, Size: size})
	}
}

func TestLaunchDisks(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(
		withStorage("fast", "lvmthin", 100*pvesim.GiB), withStorage("large", "lvmthin", 1000*pvesim.GiB),
	)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.BootDevice.Storages = []string{"missing", "fast"}
		w.NodeClass.Spec.BootDevice.SSD = new(true)
		w.NodeClass.Spec.Disks = []v1alpha1.Disk{
			{Name: "data", Size: "80Gi", Storages: []string{"fast", "large"}, DiskOptions: v1alpha1.DiskOptions{Discard: new(true)}},
			{Name: "scratch", Size: "10Gi", Bus: v1alpha1.DiskBusVirtIO},
		}
		claim := p.Planned("default-a", w.NodeClass)
		reserved := p.Inventory.View().Reservations[string(claim.UID)].Disks
		w.Expect(reserved).To(HaveExactElements(And(HaveField("Storage", "large"), HaveField("Bytes", int64(80<<30))), HaveField("Storage", "fast")))
		w.Sim.ResetRequests()
		w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
		w.Expect(w.Sim.CountRequests("PUT", "/nodes/{node}/qemu/{vmid}/config")).To(Equal(1))
		drives := w.VMConfig(w.Intent(claim)).Drives()
		boot, _ := drives.Boot()
		w.Expect(boot.Storage).To(Equal("fast"))
		w.Expect(boot.Properties.Value("ssd")).To(Equal("1"))
		data, _ := drives.Find("scsi1")
		w.Expect(data).To(And(HaveField("Storage", "large"), HaveField("SizeBytes", int64(80<<30))))
		w.Expect(data.Properties.Value("serial")).To(Equal("data"))
		w.Expect(data.Properties.Value("discard")).To(Equal("on"))
		scratch, _ := drives.Find("virtio1")
		w.Expect(scratch).To(And(HaveField("Storage", "fast"), HaveField("SizeBytes", int64(10<<30))))
		p.DeleteAll(claim)
		w.Expect(append(w.Volumes("pve1", "fast", "images"), w.Volumes("pve1", "large", "images")...)).To(BeEmpty())
	})
}

// onFast is a Cluster with the storage fast.
var onFast = testenv.With(testenv.NoPolling(), testenv.Scenario(withStorage("fast", "lvmthin", 100*pvesim.GiB)))

// launchMachine launches the VM of the machine db-1, which has a retained disk of 10 GiB on the
// storage fast and another disk.
func launchMachine(w *testenv.Env, p *testenv.Process) *karpv1.NodeClaim {
	w.T.Helper()
	w.NodeClass.Spec.Machines = []v1alpha1.Machine{{Name: "db-1", Zone: "pve1"}}
	w.NodeClass.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "10Gi", Storage: "fast", Retain: true}, {Name: "scratch", Size: "1Gi", Storage: "fast"}}
	return p.Launched("pool-a", w.NodeClass)
}

// finish deletes a claim and its VM.
func finish(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim) {
	w.T.Helper()
	p.Delete(w.Stored(claim))
	w.Expect(w.Kube.Delete(w.Context(), claim)).To(Succeed())
}

// dataDisk returns the disk data of a claim's VM.
func dataDisk(w *testenv.Env, claim *karpv1.NodeClaim) proxmox.Drive {
	w.T.Helper()
	disk, ok := w.VMConfig(w.Intent(w.Stored(claim))).Drives().Find("scsi1")
	w.Expect(ok).To(BeTrue())
	w.Expect(disk.Properties.Value("serial")).To(Equal("data"))
	return disk
}

func TestLaunchRetainedDisks(t *testing.T) {
	t.Parallel()
	for storage, want := range map[string]string{
		"lvmthin": `^fast:vm-999999999-[0-9a-z]+_db-1_data$`, "dir": `^fast:999999999/vm-999999999-[0-9a-z]+_db-1_data.raw$`,
	} {
		testenv.With(testenv.NoPolling(), testenv.Scenario(withStorage("fast", storage, 100*pvesim.GiB))).Subtest(t, storage, func(w *testenv.Env, p *testenv.Process) {
			claim := launchMachine(w, p)
			data := dataDisk(w, claim)
			w.Expect(data).To(And(HaveField("VolumeID", MatchRegexp(want)), HaveField("SizeBytes", int64(10<<30))))
			finish(w, p, claim)
			w.ExpectNoOrphans()
			w.Expect(w.Volumes("pve1", "fast", "images")).To(HaveExactElements(HaveField("ID", data.VolumeID)), "the other disk is deleted")

			// The next VM of the machine has the same volume, which grows.
			w.NodeClass.Spec.Disks[0].Size = "20Gi"
			claim = p.Planned("pool-b", w.NodeClass)
			requests := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
			w.Expect(names(requests)).NotTo(ContainElement("POST /nodes/{node}/storage/{storage}/content"))
			w.Expect(dataDisk(w, claim)).To(And(HaveField("VolumeID", data.VolumeID), HaveField("SizeBytes", int64(20<<30))))
			finish(w, p, claim)
			w.Expect(w.Volumes("pve1", "fast", "images")).To(HaveExactElements(HaveField("SizeBytes", int64(20<<30))))
		})
	}
}

func TestLaunchRetainedDiskUnavailable(t *testing.T) {
	t.Parallel()
	// Two guests never write to the disk of a machine.
	onFast.Subtest(t, "attached", func(w *testenv.Env, p *testenv.Process) {
		claim := launchMachine(w, p)
		volume := w.Intent(claim).Retained["data"]
		finish(w, p, claim)
		w.CloneByHand("pve1", testenv.LastVMID, "rescue")
		p.Refresh()
		guest, _ := p.Inventory.View().Guest(testenv.Region, testenv.LastVMID)
		w.Expect(guest.Config).NotTo(BeNil())
		attach := proxmox.ConfigChange{Set: map[string]string{"scsi5": volume}}
		w.Expect(w.Client.UpdateVM(w.Context(), "pve1", testenv.LastVMID, attach)).To(Succeed()) // which no list shows
		claim = p.Planned("pool-b", w.NodeClass)
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(And(
			ContainSubstring("disk "+volume+" of machine db-1 is attached to VM"), ContainSubstring("detach it there"))))
	})
	// A retained disk that was moved in Proxmox has the VMID in its name. It is not deleted with the
	// VM.
	onFast.Subtest(t, "moved", func(w *testenv.Env, p *testenv.Process) {
		claim := launchMachine(w, p)
		in, drive := w.Intent(claim), dataDisk(w, claim)
		w.Expect(drive.VolumeID).To(Equal(in.Retained["data"]))
		drive.VolumeID = fmt.Sprintf("fast:vm-%d-disk-7", in.VMID)
		w.Expect(w.Client.CreateVolume(w.Context(), in.Host, proxmox.NewVolume{ID: drive.VolumeID, VMID: in.VMID, GiB: 10})).To(Succeed())
		w.Expect(w.Client.UpdateVM(w.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{drive.Slot: drive.Encode()}})).To(Succeed())
		_, err := p.Instances.Deleter.Delete(w.Context(), claim)
		w.Expect(err).To(MatchError(ContainSubstring("disk data of machine db-1 was moved to volume " + drive.VolumeID)))
		w.Expect(w.Running(claim)).To(BeTrue(), "it was not stopped")
	})
}
