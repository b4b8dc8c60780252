// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

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

// changeOf returns the change of a clone and of what is desired, after both were edited.
func changeOf(edit func(options map[string]string, want *Desired)) (proxmox.ConfigChange, error) {
	clone, want := ubuntuClone(), desired()
	edit(clone.Options, &want)
	return Change(clone, want)
}

func TestChange(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	change, err := Change(ubuntuClone(), desired())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(change.Digest).To(Equal("d1"))
	g.Expect(change.Set).To(And(HaveKeyWithValue("cores", "2"), HaveKeyWithValue("memory", "6144"),
		HaveKeyWithValue("balloon", "0"), HaveKeyWithValue("tags", "k8s;karpenter")))
	g.Expect(proxmox.ParseSMBIOS(change.Set["smbios1"])).To(And(HaveField("UUID", claimUID), HaveField("SKU", "t1.2VCPU-6GB"),
		HaveField("Serial", "h=default-abc;i=20001"), HaveField("Manufacturer", "ACME")), "inherited fields stay")
	g.Expect(proxmox.ParseNIC("net0", change.Set["net0"])).To(And(
		HaveField("MAC", "BC:24:11:00:00:01"), HaveField("Queues", 2), HaveField("VLAN", 7),
		HaveField("MTU", 1500), HaveField("Firewall", true), HaveField("Bridge", "vmbr0")))
	g.Expect(proxmox.ParseNIC("net1", change.Set["net1"])).To(And(HaveField("Model", "e1000"), HaveField("Queues", 0)), "only virtio has queues")
	g.Expect(proxmox.ParseDrive("scsi0", change.Set["scsi0"]).VolumeID).To(Equal("local-lvm:vm-20001-disk-0"), "the volume must be sent again")
}

func TestChangeByTemplate(t *testing.T) {
	t.Parallel()
	type options = map[string]string
	net0 := func(field string, value any) types.GomegaMatcher {
		return HaveField("Set", HaveKeyWithValue("net0", WithTransform(func(text string) proxmox.NIC {
			return proxmox.ParseNIC("net0", text)
		}, HaveField(field, value))))
	}
	for name, test := range map[string]struct {
		edit    func(options, *Desired)
		want    types.GomegaMatcher
		failure string
	}{
		"without_boot_data": {
			edit: func(_ options, s *Desired) { s.ISO = "" },
			want: And(HaveField("Set", Not(Or(HaveKey("scsi30"), HaveKey("ide2"), HaveKey("boot")))), HaveField("Delete", BeEmpty())),
		},
		"queues_limit": {edit: func(_ options, s *Desired) { s.Cores = 96 }, want: net0("Queues", 64)},
		"inherited_protection_and_vcpus": { // a protected VM keeps its drives
			edit: func(o options, _ *Desired) { o["protection"], o["vcpus"] = "1", "1" },
			want: And(HaveField("Set", HaveKeyWithValue("protection", "0")), HaveField("Delete", ConsistOf("vcpus"))),
		},
		"no_boot_disk":                        {edit: func(o options, _ *Desired) { delete(o, "scsi0") }, failure: "no boot disk"},
		"security_group_on_missing_interface": {edit: func(_ options, s *Desired) { s.Firewalled = []string{"net5"} }, failure: "interface net5"},
		"security_group_enables_firewall": {
			edit: func(o options, s *Desired) {
				o["net0"], s.Firewalled = "virtio=BC:24:11:AA:BB:CC,bridge=vmbr0", []string{"net0"}
			},
			want: net0("Firewall", true),
		},
		// An interface that the class leaves unconfigured does not keep the address of the template.
		"removed_address": {
			edit: func(o options, s *Desired) {
				o["ipconfig1"], s.Network.Interfaces = "ip=dhcp", map[string]network.InterfaceAddresses{"net1": {}}
			},
			want: HaveField("Delete", ContainElement("ipconfig1")),
		},
		"hook_script_without_hook":    {edit: func(_ options, s *Desired) { s.HookScripts = []string{"announce"} }, failure: "spec.hookScripts names announce"},
		"command_for_the_hook_script": {edit: func(_ options, s *Desired) { s.HookScripts = []string{"a"} }, failure: "--hookscript local:snippets/pve-hook"},
		"hook_script_with_hook": {
			edit: func(o options, s *Desired) {
				o["hookscript"], s.HookScripts = "local:snippets/pve-hook", []string{"announce"}
			},
			want: HaveField("Digest", "d1"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			change, err := changeOf(test.edit)
			if test.failure != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.failure)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(change).To(test.want)
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
