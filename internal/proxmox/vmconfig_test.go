// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// A config of 8.4 with numbers, texts and a boolean.
const nodeConfig = `{
	"agent": "enabled=1", "boot": "order=ide2;scsi0;net0", "cores": 4, "cpulimit": "1", "description": "ours",
	"digest": "da39a3ee", "ide0": "none,media=cdrom", "ide2": "local:9000/vm-9000-cloudinit.qcow2,media=cdrom,size=4M",
	"memory": "8192", "name": "ubuntu", "net0": "virtio=BC:24:11:2E:C5:01,bridge=vmbr0,firewall=1,tag=7,trunks=2;4-6",
	"net1": "model=e1000,macaddr=BC:24:11:00:00:02,bridge=vnet1,mtu=1", "net10": "virtio,bridge=vmbr1", "numa": 1,
	"onboot": true, "protection": 0, "scsi0": "local-lvm:base-9000-disk-0/vm-20001-disk-0,discard=on,iothread=1,size=3584M",
	"scsi10": "ceph:vm-20001-disk-1,size=1T", "scsi2": "ceph:vm-20001-disk-2,size=1.5G", "scsihw": "virtio-scsi-single",
	"efidisk0": "local-lvm:vm-20001-disk-3,size=4M", "unused0": "local-lvm:vm-20001-disk-9",
	"smbios1": "uuid=6f3f8a4e-4fd4-4d2c-9a5e-1a1f6b7a3a11,manufacturer=QUNNRSwgSW5jLg==,sku=YzEuNFZDUFUtOEdC,base64=1",
	"sockets": 1, "tags": "karpenter;zone-a", "template": 1, "lock": "clone", "vmgenid": "0"
}`

func readConfig(t *testing.T, text string) proxmox.VMConfig {
	t.Helper()
	var c proxmox.VMConfig
	NewWithT(t).Expect(json.Unmarshal([]byte(text), &c)).To(Succeed())
	return c
}

func TestVMConfig(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := readConfig(t, nodeConfig)
	g.Expect(c).To(And(
		HaveField("Digest", "da39a3ee"), HaveField("Options", And(Not(HaveKey("digest")), HaveKeyWithValue("onboot", "1"))),
		HaveField("Name()", "ubuntu"), HaveField("Description()", "ours"), HaveField("Lock()", "clone"),
		HaveField("Tags()", Equal([]string{"karpenter", "zone-a"})), HaveField("IsTemplate()", true), HaveField("Protected()", false),
	))
	g.Expect([]int{c.Compute().Cores(), c.Compute().Sockets(), c.Compute().MemoryMiB()}).To(Equal([]int{4, 1, 8192}))

	empty := readConfig(t, `{}`)
	g.Expect([]int{empty.Compute().Cores(), empty.Compute().Sockets(), empty.Compute().MemoryMiB()}).To(Equal([]int{1, 1, 512}), "Proxmox's defaults")
	g.Expect(readConfig(t, `{"memory":2048}`).Compute().MemoryMiB()).To(Equal(2048), "a number before 8.1")
	g.Expect(readConfig(t, `{"memory":"current=4096"}`).Compute().MemoryMiB()).To(Equal(4096))
	g.Expect(json.Unmarshal([]byte(`"x"`), &empty)).NotTo(Succeed())
}

func TestNIC(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	nics := readConfig(t, nodeConfig).Network().NICs()
	g.Expect(nics).To(HaveLen(3))
	g.Expect([]string{nics[0].Slot, nics[1].Slot, nics[2].Slot}).To(Equal([]string{"net0", "net1", "net10"}))

	first := nics[0]
	g.Expect(first).To(And(HaveField("Model", "virtio"), HaveField("MAC", "BC:24:11:2E:C5:01"), HaveField("Bridge", "vmbr0"),
		HaveField("VLAN", 7), HaveField("Firewall", true)))
	g.Expect(first.Encode()).To(Equal("virtio=BC:24:11:2E:C5:01,bridge=vmbr0,firewall=1,tag=7,trunks=2;4-6"))
	first.Queues, first.VLAN, first.Firewall = 4, 0, false
	g.Expect(first.Encode()).To(Equal("virtio=BC:24:11:2E:C5:01,bridge=vmbr0,firewall=0,trunks=2;4-6,queues=4"))

	g.Expect(nics[1]).To(And(HaveField("Model", "e1000"), HaveField("MAC", "BC:24:11:00:00:02"), HaveField("MTU", 1),
		HaveField("Encode()", "e1000=BC:24:11:00:00:02,bridge=vnet1,mtu=1")))
	g.Expect(nics[2]).To(And(HaveField("MAC", ""), HaveField("Encode()", "virtio,bridge=vmbr1")))
	const later = "vmxnet9=BC:24:11:00:00:02,bridge=vmbr0" // a model of a later release
	g.Expect(proxmox.ParseNIC("net0", later)).To(And(HaveField("Model", "vmxnet9"), HaveField("Encode()", later)))
	g.Expect(proxmox.NIC{Bridge: "vmbr0", Firewall: true}.Encode()).To(Equal("virtio,bridge=vmbr0,firewall=1"))
}

func TestDrives(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := readConfig(t, nodeConfig)
	var slots []string
	for _, d := range c.Drives().All() {
		slots = append(slots, d.Slot)
		g.Expect(d.Encode()).To(Equal(c.Options[d.Slot]))
	}
	g.Expect(slots).To(Equal([]string{"ide0", "ide2", "scsi0", "scsi2", "scsi10"}), "no EFI, TPM or unused volumes")

	for slot, matcher := range map[string]types.GomegaMatcher{
		"ide0":   And(HaveField("IsCDROM", true), HaveField("Storage", "")),
		"ide2":   And(HaveField("IsCDROM", true), HaveField("IsCloudInit", true)),
		"scsi10": HaveField("SizeBytes", int64(1<<40)),
		"scsi2":  HaveField("SizeBytes", int64(3<<29)),
	} {
		drive, _ := c.Drives().Find(slot)
		g.Expect(drive).To(matcher, slot)
	}
	_, ok := c.Drives().Find("efidisk0")
	g.Expect(ok).To(BeFalse())

	for volume, want := range map[string]bool{
		"local-lvm:vm-101-cloudinit": true, "local:101/vm-101-cloudinit.qcow2": true, "local-lvm:cloudinit": true,
		"local:iso/vm-101-cloudinit-notes.iso": false, "local-lvm:vm-101-disk-0": false,
	} {
		g.Expect(proxmox.ParseDrive("ide2", volume+",media=cdrom").IsCloudInit).To(Equal(want), volume)
	}
	g.Expect(proxmox.ParseDrive("scsi0", "file=local:100/a.raw,size=1G").VolumeID).To(Equal("local:100/a.raw"))
}

func TestDrivesBoot(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for name, test := range map[string]struct{ config, want string }{
		"first_disk_of_the_order": {nodeConfig, "scsi0"},
		"order_wins_over_slots":   {`{"boot":"order=scsi1;scsi0","scsi0":"l:a","scsi1":"l:b"}`, "scsi1"},
		"order_with_missing_slot": {`{"boot":"order=scsi7","scsi0":"l:a"}`, "scsi0"},
		"legacy":                  {`{"boot":"c","bootdisk":"sata1","sata0":"l:a","sata1":"l:b"}`, "sata1"},
		"no_order_virtio_first":   {`{"scsi0":"l:a","virtio0":"l:b"}`, "virtio0"},
		"ide_last":                {`{"ide0":"l:a"}`, "ide0"},
		"only_a_CD":               {`{"boot":"order=ide0","ide0":"none,media=cdrom"}`, ""},
	} {
		disk, ok := readConfig(t, test.config).Drives().Boot()
		g.Expect(disk.Slot).To(Equal(test.want), name)
		g.Expect(ok).To(Equal(test.want != ""), name)
	}
}

func TestSMBIOS(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := readConfig(t, nodeConfig).SMBIOS()
	g.Expect(s).To(And(HaveField("UUID", "6f3f8a4e-4fd4-4d2c-9a5e-1a1f6b7a3a11"), HaveField("Manufacturer", "ACME, Inc."), HaveField("SKU", "c1.4VCPU-8GB")))

	s.UUID, s.Serial = "0b1e", "h=node-1;i=20001"
	g.Expect(proxmox.ParseSMBIOS(s.Encode())).To(Equal(s))
	g.Expect(s.Encode()).To(Equal("uuid=0b1e,manufacturer=QUNNRSwgSW5jLg==,serial=aD1ub2RlLTE7aT0yMDAwMQ==,sku=YzEuNFZDUFUtOEdC,base64=1"))

	plain := proxmox.ParseSMBIOS("uuid=1,serial=plain,future=x")
	g.Expect(plain.Serial).To(Equal("plain"))
	g.Expect(plain.Encode()).To(Equal("uuid=1,serial=cGxhaW4=,base64=1,future=x"), "unknown properties are kept")
	g.Expect(proxmox.ParseSMBIOS("").Encode()).To(BeEmpty())
	g.Expect(proxmox.ParseSMBIOS("serial=$$$,base64=1").Serial).To(Equal("$$$"))
}

func TestProperties(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := proxmox.ParseProperties("local:a,size=3G,ssd=1")
	g.Expect(p.With("size", "4G").With("discard", "on").Without("ssd").Encode()).To(Equal("local:a,size=4G,discard=on"))
	g.Expect(p.Encode()).To(Equal("local:a,size=3G,ssd=1"), "a copy is changed, not the original")
	g.Expect(p.Value("nothing")).To(BeEmpty())
	_, ok := p.Get("local:a")
	g.Expect(ok).To(BeFalse())
}

func FuzzProperties(f *testing.F) {
	for _, seed := range []string{"", ",", "a", "a=b", "virtio=BC:24:11:00:00:01,bridge=vmbr0", "=,a==b,,", "x,y=1,y=2"} {
		f.Add(seed, "key", "value")
	}
	f.Fuzz(func(t *testing.T, text, key, value string) {
		p := proxmox.ParseProperties(text)
		if found := p.Encode(); found != text {
			t.Fatalf("found %q, want %q", found, text)
		}
		if found := p.With(key, value).Value(key); found != value {
			t.Fatalf("found %q, want %q", found, value)
		}
		if _, ok := p.Without(key).Get(key); ok {
			t.Fatalf("%q is still there", key)
		}
	})
}

func FuzzDevices(f *testing.F) {
	f.Add("virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=7,firewall=1", "local-lvm:vm-1-disk-0,size=3G", "uuid=1,serial=eA==,base64=1")
	f.Add("model=virtio,macaddr=x,queues=-1", "none,media=cdrom", "base64=1,sku=%")
	f.Add("hwaddr=BC:24:11:00:00:01,model=,macaddr=", "local:1,size=NaN", "base64=true,uuid=,other")
	f.Fuzz(func(t *testing.T, nic, drive, smbios string) {
		n := proxmox.ParseNIC("net0", nic)
		again := proxmox.ParseNIC("net0", n.Encode())
		if regexp.MustCompile(`^[a-z][a-z0-9_-]*$`).MatchString(n.Model) && n.Encode() != again.Encode() {
			t.Errorf("NIC: %q becomes %q", n.Encode(), again.Encode())
		}
		d := proxmox.ParseDrive("scsi0", drive)
		if d.SizeBytes < 0 || proxmox.ParseDrive("scsi0", d.Encode()).VolumeID != d.VolumeID {
			t.Errorf("drive: %q becomes %q", drive, d.Encode())
		}
		s := proxmox.ParseSMBIOS(smbios)
		s.UUID, s.Serial = "u", "a,b=c"
		if found := proxmox.ParseSMBIOS(s.Encode()); found.Serial != s.Serial || found.UUID != s.UUID || found.SKU != s.SKU {
			t.Errorf("smbios: %+v becomes %+v", s, found)
		}
	})
}

func TestUPID(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	u := proxmox.UPID("UPID:pve-1:00003921:100053CD7:6AF90394:qmclone:9001:kubernetes@pve!karpenter:")
	g.Expect([]any{u.Valid(), u.Host(), u.Kind(), u.ID(), u.User(), u.Started()}).
		To(Equal([]any{true, "pve-1", "qmclone", "9001", "kubernetes@pve!karpenter", time.Unix(0x6AF90394, 0)}))
	g.Expect(proxmox.UPID("UPID:pve1:00003815:00053B55:6AF90390:imgcopy::a@pve:").Valid()).To(BeTrue(), "an empty id")
	for _, bad := range []proxmox.UPID{
		"", "UPID:", "UPID:pve1", "upid:pve1:00003921:00053CD7:6AF90394:qmclone:9001:a@pve:",
		"UPID:pve1:3921:00053CD7:6AF90394:qmclone:9001:a@pve:", "UPID:../x:00003921:00053CD7:6AF90394:qmclone:9001:a@pve:",
		"UPID:pve1:00003921:00053CD7:6AF90394:qmclone:9001:a@pve",
	} {
		g.Expect(bad.Valid()).To(BeFalse(), string(bad))
		g.Expect(bad.Host()+bad.Kind()+bad.ID()).To(BeEmpty(), string(bad))
		g.Expect(bad.Started().IsZero()).To(BeTrue())
	}
}

func FuzzVMConfig(f *testing.F) {
	f.Add(nodeConfig)
	f.Add(`{"boot":"order=;","net0":"","scsi0":"","tags":";;"}`)
	f.Fuzz(func(t *testing.T, text string) {
		var c proxmox.VMConfig
		if json.Unmarshal([]byte(text), &c) != nil {
			return
		}
		_, _ = c.Drives().Boot()
		_ = c.SMBIOS()
		if !reflect.DeepEqual(c.Network().NICs(), c.Network().NICs()) || !reflect.DeepEqual(c.Drives().All(), c.Drives().All()) {
			t.Error("two readings differ")
		}
	})
}
