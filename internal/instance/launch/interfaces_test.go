// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// TestLaunchInterfaces checks that a VM gets the interfaces of its class, with the MAC and the addresses of the plan, after a
// restart and a change of the class.
func TestLaunchInterfaces(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[0].Bridges = append(s.Hosts[0].Bridges, pvesim.Bridge{Name: "vmbr1", VLANAware: true, CIDR: "10.1.0.1/24"})
		s.SecurityGroups = []pvesim.SecurityGroup{{Name: "storage"}}
	}))
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
	claim := w.StartProcess().Planned("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(in.Network.Addresses()).To(HaveLen(1))
	w.Expect(in.MACs).To(HaveKey("net1"))

	changed := w.NodeClass.DeepCopy()
	changed.Spec.Network.Interfaces[0].Bridge = "vmbr0"
	p := w.StartProcess()
	w.Expect(p.Launch(claim, changed)).To(Succeed())

	cfg := w.VMConfig(in)
	w.Expect(cfg.Options).To(HaveKeyWithValue("ipconfig1", "ip=10.1.0.7/24"))
	nics := cfg.Network().NICs()
	w.Expect(nics).To(HaveLen(2))
	w.Expect(nics[1]).To(And(HaveField("MAC", in.MACs["net1"]), HaveField("Bridge", "vmbr1"), HaveField("VLAN", 9), HaveField("Trunks", "10-12"),
		HaveField("Model", proxmox.ModelVirtIO), HaveField("Queues", in.Cores), HaveField("Firewall", true)))
	w.Expect(w.Booted(in.VMID).CDROM).To(And(
		ContainSubstring(`- "10.1.0.7/24"`), ContainSubstring(fmt.Sprintf("routes:\n      - to: %q\n        via: %q\n        metric: 50\n        table: 100\n", "10.0.0.0/8", "10.1.0.1")),
		ContainSubstring("via: \"10.2.0.1\"\n        on-link: true"), ContainSubstring("routing-policy:\n      - table: 100\n        priority: 1000\n        from: \"10.1.0.0/24\""),
		ContainSubstring(`addresses: ["10.1.0.53"]`), ContainSubstring("accept-ra: false")))
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}

// A gateway outside of the subnet is reached through the interface, also one of 169.254.0.0/16.
func TestLaunchLinkLocalGateway(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	w.NodeClass.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
		Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "203.0.113.5/32", Gateway: "169.254.1.1"},
		Address6: &v1alpha1.AddressSource{CIDR: "2001:db8::/64", Gateway: "fe80::1"},
	}}}
	claim := w.StartProcess().Planned("pool-abc", w.NodeClass)
	p := w.StartProcess()
	w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
	w.Expect(w.Booted(w.Intent(claim).VMID).CDROM).To(And(
		ContainSubstring("via: \"169.254.1.1\"\n        on-link: true"), ContainSubstring(`via: "fe80::1"`), Not(ContainSubstring("via: \"fe80::1\"\n        on-link: true"))))
}

// A template that was the VM of a Node has the serial of that VM, which clones inherit.
func TestLaunchInheritedSerial(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests[0].Config["smbios1"] = proxmox.SMBIOS{UUID: "e536baad-cf78-4543-9034-60295eed2b22", Serial: vmconfig.SMBIOSSerial("older", 123)}.Encode()
	}))
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass)
	w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
	w.Expect(w.VMConfig(w.Intent(claim)).SMBIOS().Serial).To(HavePrefix("h=pool-abc;"))
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}
