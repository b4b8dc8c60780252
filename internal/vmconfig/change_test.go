// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const claimUID = "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"

func ubuntuClone() proxmox.VMConfig {
	return proxmox.VMConfig{Digest: "d1", Options: map[string]string{
		"boot":    "order=scsi0;net0",
		"cores":   "1",
		"memory":  "512",
		"ide2":    "local-lvm:vm-20001-cloudinit,media=cdrom",
		"net0":    "virtio=BC:24:11:AA:BB:CC,bridge=vmbr0,firewall=1,mtu=1500,tag=7",
		"net1":    "e1000=BC:24:11:AA:BB:CD,bridge=vmbr1",
		"scsi0":   "local-lvm:vm-20001-disk-0,discard=on,iothread=1,size=3G",
		"smbios1": "uuid=e536baad-cf78-4543-9034-60295eed2b22,manufacturer=QUNNRQ==,base64=1",
		"scsihw":  "virtio-scsi-single",
	}}
}

func desired() Desired {
	return Desired{
		Name: "default-abc", VMID: 20001, UUID: claimUID, InstanceType: "t1.2VCPU-6GB", Cores: 2, MemoryMiB: 6144, Tags: []string{"k8s", "karpenter"},
		MACs: map[string]string{"net0": "BC:24:11:00:00:01", "net1": "BC:24:11:00:00:02"}, ISO: "local:iso/x.iso",
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	change, err := Change(ubuntuClone(), desired())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(change.Digest).To(Equal("d1"))
	g.Expect(change.Set).To(HaveKeyWithValue("cores", "2"))
	g.Expect(change.Set).To(HaveKeyWithValue("memory", "6144"))
	g.Expect(change.Set).To(HaveKeyWithValue("balloon", "0"))
	g.Expect(change.Set).To(HaveKeyWithValue("tags", "k8s;karpenter"))

	bios := proxmox.ParseSMBIOS(change.Set["smbios1"])
	g.Expect(bios.UUID).To(Equal(claimUID))
	g.Expect(bios.SKU).To(Equal("t1.2VCPU-6GB"))
	g.Expect(bios.Serial).To(Equal("h=default-abc;i=20001"))
	g.Expect(bios.Manufacturer).To(Equal("ACME"), "inherited fields stay")

	g.Expect(proxmox.ParseNIC("net0", change.Set["net0"])).To(And(
		HaveField("MAC", "BC:24:11:00:00:01"), HaveField("Queues", 2), HaveField("VLAN", 7),
		HaveField("MTU", 1500), HaveField("Firewall", true), HaveField("Bridge", "vmbr0")))
	g.Expect(proxmox.ParseNIC("net1", change.Set["net1"])).To(And(HaveField("Model", "e1000"), HaveField("Queues", 0)), "only virtio has queues")

	g.Expect(proxmox.ParseDrive("scsi0", change.Set["scsi0"]).VolumeID).To(Equal("local-lvm:vm-20001-disk-0"), "the volume must be sent again")
	g.Expect(change.Set["scsi0"]).To(And(ContainSubstring("backup=0"), ContainSubstring("replicate=0"), ContainSubstring("iothread=1")))

}

func TestChangeByTemplate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*proxmox.VMConfig, *Desired)
		expect func(Gomega, proxmox.ConfigChange, error)
	}{
		"without_boot_data": {
			func(_ *proxmox.VMConfig, s *Desired) { s.ISO = "" },
			func(g Gomega, c proxmox.ConfigChange, err error) {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(c.Set).NotTo(Or(HaveKey("scsi30"), HaveKey("ide2"), HaveKey("boot")))
				g.Expect(c.Delete).To(BeEmpty())
			},
		},
		"queues_limit": {
			func(_ *proxmox.VMConfig, s *Desired) { s.Cores = 96 },
			func(g Gomega, c proxmox.ConfigChange, err error) {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(proxmox.ParseNIC("net0", c.Set["net0"]).Queues).To(Equal(64))
			},
		},
		"inherited_protection_and_vcpus": {
			func(c *proxmox.VMConfig, _ *Desired) { c.Options["protection"], c.Options["vcpus"] = "1", "1" },
			func(g Gomega, c proxmox.ConfigChange, err error) {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(c.Set).To(HaveKeyWithValue("protection", "0"))
				g.Expect(c.Delete).To(ConsistOf("vcpus"), "a protected VM keeps its drives")
			},
		},
		"no_boot_disk": {
			func(c *proxmox.VMConfig, _ *Desired) { delete(c.Options, "scsi0") },
			func(g Gomega, _ proxmox.ConfigChange, err error) {
				g.Expect(err).To(MatchError(ContainSubstring("no boot disk")))
			},
		},
		"security_group_on_missing_interface": {
			func(_ *proxmox.VMConfig, s *Desired) { s.Firewalled = []string{"net5"} },
			func(g Gomega, _ proxmox.ConfigChange, err error) {
				g.Expect(err).To(MatchError(ContainSubstring("interface net5")))
			},
		},
		"security_group_enables_firewall": {
			func(c *proxmox.VMConfig, s *Desired) {
				c.Options["net0"] = "virtio=BC:24:11:AA:BB:CC,bridge=vmbr0"
				s.Firewalled = []string{"net0"}
			},
			func(g Gomega, c proxmox.ConfigChange, err error) {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(proxmox.ParseNIC("net0", c.Set["net0"]).Firewall).To(BeTrue())
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, want := ubuntuClone(), desired()
			test.change(&cfg, &want)
			change, err := Change(cfg, want)
			test.expect(NewWithT(t), change, err)
		})
	}
}

func TestChangeDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clone, want := ubuntuClone(), desired()
	clone.Options["hostpci1"] = "mapping=nic,pcie=1"
	want.Devices = []string{"gpu", "gpu", "nic"}
	change, err := Change(clone, want)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(change.Set).To(And(HaveKeyWithValue("hostpci0", "mapping=gpu"), HaveKeyWithValue("hostpci2", "mapping=gpu"), Not(HaveKey("hostpci1"))))

	clone.Options["machine"] = "pc-q35-9.2"
	change, err = Change(clone, want)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(change.Set).To(HaveKeyWithValue("hostpci0", "mapping=gpu,pcie=1"))

	want.Devices = slices.Repeat([]string{"gpu"}, 16)
	g.Expect(Change(clone, want)).Error().To(MatchError(ContainSubstring("PCI slots for devices of gpu")))
}

func TestChangeInterfaces(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	want := desired()
	want.MACs["net2"] = "BC:24:11:00:00:03"
	want.Firewalled = []string{"net2"}
	want.Network.Interfaces = map[string]network.InterfaceAddresses{
		"net0": {DHCP4: true, Device: v1alpha1.InterfaceDevice{Bridge: "vmbr7", Queues: new(int32(1)), Firewall: new(false)}},
		"net2": {Address4: netip.MustParsePrefix("10.0.0.5/24"), Device: v1alpha1.InterfaceDevice{Bridge: "vmbr2", VLAN: new(int32(9)), MTU: new(int32(9000))}},
	}
	change, err := Change(ubuntuClone(), want)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(change.Set).To(HaveKeyWithValue("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr7,firewall=0,mtu=1500,tag=7,queues=1"))
	g.Expect(change.Set).To(HaveKeyWithValue("net1", "e1000=BC:24:11:00:00:02,bridge=vmbr1"))
	g.Expect(change.Set).To(HaveKeyWithValue("net2", "virtio=BC:24:11:00:00:03,bridge=vmbr2,firewall=1,tag=9,mtu=9000,queues=2"))
	g.Expect(change.Set).To(HaveKeyWithValue("ipconfig2", "ip=10.0.0.5/24"))
}

func TestChangeQueues(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	want := desired()
	want.Cores = 128
	change, err := Change(ubuntuClone(), want)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(proxmox.ParseNIC("net0", change.Set["net0"])).To(And(HaveField("Queues", 64), HaveField("MTU", 1500)))
}

// An interface that the class leaves unconfigured does not keep the address of the template.
func TestChangeRemovesAddress(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clone, want := ubuntuClone(), desired()
	clone.Options["ipconfig1"] = "ip=dhcp"
	want.Network.Interfaces = map[string]network.InterfaceAddresses{"net1": {}}
	g.Expect(Change(clone, want)).To(HaveField("Delete", ContainElement("ipconfig1")))
}
