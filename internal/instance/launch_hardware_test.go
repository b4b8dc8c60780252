// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"testing"

	. "github.com/onsi/gomega"

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
		})).Subtest(t, release, func(w *testenv.Env, p *testenv.Process) {
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

func TestLaunchShares(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(mapped("pve1"))).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.Shares = []v1alpha1.Share{{Mapping: "data", MountPath: "/mnt/data", Cache: "metadata"}}
		claim := p.Launched("default-a", w.NodeClass)
		w.Expect(w.VMConfig(w.Intent(claim)).Options).To(HaveKeyWithValue("virtiofs0", "dirid=data,cache=metadata"))
		w.Expect(w.Running(claim)).To(BeTrue())
		p.DeleteAll(claim)
	})
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
// restart the VM is that of the class as it is then.
func TestLaunchInterfaces(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[0].Bridges = append(s.Hosts[0].Bridges, pvesim.Bridge{Name: "vmbr1", VLANAware: true, CIDR: "10.1.0.1/24"})
		s.SecurityGroups = []pvesim.SecurityGroup{{Name: "storage"}}
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "storage", Interface: "net1"}}
		w.NodeClass.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
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
		w.Expect(in.Network.Addresses()).To(HaveLen(1))
		w.Expect(in.MACs).To(HaveKey("net1"))

		w.NodeClass.Spec.Network.Interfaces[0].Bridge = "vmbr0"
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
			ContainSubstring(`- "10.1.0.7/24"`),
			ContainSubstring("routes:\n      - to: \"10.0.0.0/8\"\n        via: \"10.1.0.1\"\n        metric: 50\n        table: 100\n"),
			ContainSubstring("via: \"10.2.0.1\"\n        on-link: true"),
			ContainSubstring("routing-policy:\n      - table: 100\n        priority: 1000\n        from: \"10.1.0.0/24\""),
			ContainSubstring(`addresses: ["10.1.0.53"]`), ContainSubstring("accept-ra: false")))
		p.DeleteAll(claim)
	})
}

// A gateway outside of the subnet is reached through the interface, also one of 169.254.0.0/16.
func TestLaunchLinkLocalGateway(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
			Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "203.0.113.5/32", Gateway: "169.254.1.1"},
			Address6: &v1alpha1.AddressSource{CIDR: "2001:db8::/64", Gateway: "fe80::1"},
		}}}
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(w.Booted(w.Intent(claim).VMID).CDROM).To(And(
			ContainSubstring("via: \"169.254.1.1\"\n        on-link: true"),
			ContainSubstring(`via: "fe80::1"`), Not(ContainSubstring("via: \"fe80::1\"\n        on-link: true"))))
	})
}

// A template that was the VM of a Node has the serial of that VM, which clones inherit.
func TestLaunchInheritedSerial(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(templatesWith(map[string]string{
		"smbios1": proxmox.SMBIOS{UUID: "e536baad-cf78-4543-9034-60295eed2b22", Serial: vmconfig.SMBIOSSerial("older", 123)}.Encode(),
	}))).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(w.VMConfig(w.Intent(claim)).SMBIOS().Serial).To(HavePrefix("h=pool-abc;"))
	})
}
