// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// boot runs cloud-init of a machine with this disk and these drives, and returns its console.
func boot(t *testing.T, disk *memoryDisk, images ...[]byte) (system, string) {
	t.Helper()
	vm := newGuest(disk, images...)
	s, ok := vm.cloudInit()
	NewWithT(t).Expect(ok).To(BeTrue(), "the boot goes on")
	return s, vm.console.String()
}

func TestCloudInitOncePerInstance(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(nil)
	first, console := boot(t, disk, []byte("not an image"), seedWith(t, "i-1", lines(
		"#cloud-config",
		"hostname: Worker-1.example.com",
		"write_files:",
		"  - {path: /f, content: one, permissions: '0600'}",
		"  - {path: /f, content: two, append: true, permissions: 0644}",
		"  - {path: relative, content: x}",
		"  - {path: /g, content: x, permissions: rw}",
		"runcmd:",
		"  - [systemctl, enable, --now, kubelet]",
	)))
	g.Expect(first.hostname).To(Equal("worker-1"))
	g.Expect(first.service).To(Equal(kubeletService))
	g.Expect(first.addresses).To(HaveLen(1))
	g.Expect(disk.text("/f")).To(Equal("onetwo"))
	g.Expect(console).To(And(ContainSubstring(`path "relative" is not absolute`), ContainSubstring(`/g: permissions "rw" are not an octal number`)))

	boot(t, disk, seedWith(t, "i-1", "#cloud-config\nwrite_files: [{path: /f, content: three}]\n"))
	g.Expect(disk.text("/f")).To(Equal("onetwo"), "the same instance is not configured again")
	withoutDrive, _ := boot(t, disk)
	g.Expect(withoutDrive.hostname).To(Equal("worker-1"))
	g.Expect(withoutDrive.service).To(Equal(kubeletService), "the kubelet's unit is enabled and comes up by itself")
	other, _ := boot(t, disk, seedWith(t, "i-2", "#cloud-config\nwrite_files: [{path: /f, content: four}]\n"))
	g.Expect(other.hostname).To(Equal("from-meta"))
	g.Expect(disk.text("/f")).To(Equal("four"), "another instance is reconfigured")
}

func TestCloudInitPowerState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, "builder", "#cloud-config\nwrite_files: [{path: /etc/prepared, content: x}]\npower_state: {mode: poweroff}\n")
		m.powerOn()
		<-m.done // the guest powers itself off
		_, written := m.storage.Read("/etc/prepared")
		NewWithT(t).Expect(written).To(BeTrue())
	})
}

// A boot goes on without what cannot be read.
func TestCloudInitInvalid(t *testing.T) {
	t.Parallel()
	for want, image := range map[string][]byte{
		"no datasource found, no previous instance": newSeed(t, "other", map[string]string{"user-data": "", "meta-data": ""}),
		"cannot read the cidata drive":              bytes.Clone(seedWith(t, "i-1", "#cloud-config\n")[:19*2048]),
		"missing meta-data":                         newSeed(t, "cidata", map[string]string{"user-data": "#cloud-config\n"}),
		"user-data is not valid":                    seedWith(t, "i-1", "#cloud-config\nruncmd: ["),
		"unknown user-data format":                  seedWith(t, "i-1", `{"ignition": {"version": "3.4.0"}}`),
	} {
		s, console := boot(t, newDisk(nil), image)
		NewWithT(t).Expect(s.service).To(BeEmpty())
		NewWithT(t).Expect(s.addresses).To(HaveLen(1), "it uses DHCP, and reports by its agent")
		NewWithT(t).Expect(console).To(ContainSubstring(want))
	}
}

// A boot without the drive, or with another drive if cloud-init is disabled.
func TestCloudInitKeepsInstance(t *testing.T) {
	t.Parallel()
	other := seedWith(t, "i-2", "#cloud-config\nhostname: other\n")
	for name, test := range map[string]struct {
		userData, address string
		later             [][]byte
	}{
		"not set":            {"#cloud-config\n", "172.16.", nil},
		"manual_cache_clean": {"#cloud-config\nwrite_files: [{path: /etc/cloud/cloud.cfg.d/99-keep.cfg, content: 'manual_cache_clean: true'}]\n", "10.1.2.6/24", nil},
		"disabled":           {"#cloud-config\nruncmd: [[touch, /etc/cloud/cloud-init.disabled]]\n", "10.1.2.6/24", [][]byte{other}},
		"invalid setting":    {"#cloud-config\nwrite_files: [{path: /etc/cloud/cloud.cfg.d/99-keep.cfg, content: 'manual_cache_clean: false'}]\n", "172.16.", nil},
	} {
		g := NewWithT(t)
		vm := newGuest(newDisk(nil), newSeed(t, "cidata", map[string]string{
			"user-data": test.userData, "meta-data": "instance-id: i-1\nlocal-hostname: keeper\n",
			"network-config": "version: 2\nethernets: {eth0: {match: {macaddress: 'bc:24:11:00:00:01'}, addresses: [10.1.2.6/24]}}\n",
		}))
		first, ok := vm.configure()
		g.Expect(ok).To(BeTrue())
		g.Expect(fmt.Sprint(first.addresses)).To(ContainSubstring("10.1.2.6/24"), name)
		later, ok := reboot(vm, test.later...).configure()
		g.Expect(ok).To(BeTrue())
		g.Expect(later.hostname).To(Equal("keeper"), name)
		g.Expect(fmt.Sprint(later.addresses)).To(ContainSubstring(test.address), name)
	}
}

func TestWriteFilesEncodings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	g.Expect(zip.Write([]byte("hello"))).Error().NotTo(HaveOccurred())
	g.Expect(zip.Close()).To(Succeed())
	zipped := base64.StdEncoding.EncodeToString(packed.Bytes())
	for encoding, test := range map[string]struct{ content, wantErr string }{
		"":            {"hello", ""},
		"text/plain":  {"hello", ""},
		"b64":         {"aGVs\nbG8=", ""},
		"gz+b64":      {zipped, ""},
		"gzip+base64": {zipped, ""},
		"base64":      {"%%%", "encoding base64"},
		"GZ+b64":      {"aGVsbG8=", "encoding GZ+b64"},
		"rot13":       {"uryyb", `unknown encoding "rot13"`},
	} {
		disk := newDisk(nil)
		err := writeFile{Path: "/etc/../etc/f", Content: test.content, Encoding: encoding}.write(disk)
		if test.wantErr != "" {
			g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)), encoding)
			continue
		}
		g.Expect(err).NotTo(HaveOccurred(), encoding)
		g.Expect(disk.text("/etc/f")).To(Equal("hello"), encoding)
	}
}

func TestAgentNameAndAddresses(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	vm := newGuest(newDisk(nil), newSeed(t, "cidata", map[string]string{
		"user-data": "#cloud-config\n", "meta-data": "{instance-id: i, local-hostname: worker}",
		"network-config": "{version: 2, ethernets: {eth0: {addresses: [192.168.7.5/24]}}}",
	}))
	var agent *pvesim.Agent
	vm.setAgent = func(a *pvesim.Agent) { agent = a }
	vm.cloudInit()
	g.Expect(agent.Hostname).To(Equal("worker"))
	status, err := agent.ReadFile(t.Context(), "/run/cloud-init/status.json")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(status)).To(And(ContainSubstring(`"stage": null`), ContainSubstring(`"modules-final"`)))
	g.Expect(agent.ReadFile(t.Context(), "/run/x")).Error().To(MatchError(fs.ErrNotExist))
	g.Expect(agent.Interfaces).To(ContainElement(pvesim.AgentInterface{
		Name: "eth0", MAC: "BC:24:11:00:00:01", Addresses: []string{"192.168.7.5/24"},
	}))
}

func TestVendorData(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(nil)
	s, _ := boot(t, disk, newSeed(t, "cidata", map[string]string{
		"meta-data":   "instance-id: i-1\n",
		"user-data":   lines("#cloud-config", "hostname: mine", "runcmd:", "  - [touch, /user]"),
		"vendor-data": lines("#cloud-config", "hostname: theirs", "write_files:", "  - {path: /vendor, content: x}", "runcmd:", "  - [touch, /vendor-command]"),
	}))
	g.Expect(s.hostname).To(Equal("mine"))
	g.Expect(disk.Names()).To(And(ContainElements("/vendor", "/user"), Not(ContainElement("/vendor-command"))))
}

func TestCloudInitArchive(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(nil)
	s, _ := boot(t, disk, seedWith(t, "i-1", lines(
		`Content-Type: multipart/mixed; boundary="x"`, "MIME-Version: 1.0", "",
		"--x", `Content-Type: text/cloud-config; charset="utf-8"`, "", "#cloud-config", "hostname: first", "write_files:", "  - {path: /a, content: first}", "",
		"--x", "Content-Type: text/cloud-config", "Content-Transfer-Encoding: base64", "",
		"I2Nsb3VkLWNvbmZpZwpob3N0bmFtZTogbGFzdAp3cml0ZV9maWxlczoKICAtIHtwYXRoOiAvYiwg", "Y29udGVudDogbGFzdH0K",
		"--x--", "")))
	g.Expect(s.hostname).To(Equal("last"))
	g.Expect(disk.text("/a")).To(Equal("first"))
	g.Expect(disk.text("/b")).To(Equal("last"))
}

func TestMounts(t *testing.T) {
	t.Parallel()
	sizes := diskSizes(map[string]string{
		"scsi0":   "local-lvm:vm-1-disk-0,size=30G",
		"scsi1":   "local-lvm:vm-1-disk-1,serial=data,size=10G,wwn=0x5525400ABCDEF012",
		"virtio1": "local-lvm:vm-1-disk-2,serial=data,size=100G",
		"ide2":    "local:iso/a.iso,media=cdrom",
	})
	NewWithT(t).Expect(sizes).To(Equal(map[string]int64{"/dev/disk/by-id/wwn-0x5525400abcdef012": 10 << 30, "/dev/disk/by-id/virtio-data": 100 << 30}))
	const format = "fs_setup: [{device: /dev/disk/by-id/virtio-data, filesystem: ext4}]\n"
	mount := func(device, target string) string {
		return "mounts: [[" + device + ", " + target + ", ext4, defaults], [share, /mnt, virtiofs, defaults]]\n"
	}
	for config, want := range map[string]int64{
		format + mount("/dev/disk/by-id/virtio-data", "/var/lib/kubelet"):                            100,
		format + mount("/dev/disk/by-id/virtio-data", "/var/lib/"):                                   100,
		format + mount("/dev/disk/by-id/virtio-data", "/var/lib/containerd"):                         30,
		mount("/dev/disk/by-id/virtio-data", "/var/lib/kubelet"):                                     30,
		"fs_setup: [{device: /dev/sdz, filesystem: ext4}]\n" + mount("/dev/sdz", "/var/lib/kubelet"): 30,
		"": 30,
	} {
		vm := newGuest(newDisk(nil), seedWith(t, "i-1", "#cloud-config\n"+config))
		vm.disks = sizes
		_, ok := vm.cloudInit()
		NewWithT(t).Expect(ok).To(BeTrue())
		NewWithT(t).Expect(vm.ephemeralBytes()).To(Equal(want<<30), config)
	}
}

func TestIgnitionFilesystems(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const config = `{"ignition": {"version": "3.4.0"}, "storage": {"filesystems": [{"device": "/dev/disk/by-id/virtio-data", "path": "/var/lib/kubelet", "format": "ext4"}]}}`
	vm := newGuest(newDisk(nil))
	_, ok := vm.ignite([]byte(config))
	g.Expect(ok).To(BeFalse(), "the device does not exist")
	vm = newGuest(newDisk(nil))
	vm.disks = map[string]int64{"/dev/disk/by-id/virtio-data": 100 << 30}
	_, ok = vm.ignite([]byte(config))
	g.Expect(ok).To(BeTrue())
	g.Expect(vm.ephemeralBytes()).To(Equal(int64(100 << 30)))
}
