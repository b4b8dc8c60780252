// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io/fs"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestCloudInitWritesFilesAndStartsTheKubelet(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(nil)
	vm := newGuest(disk, []byte("not an image"), seedWith(t, "i-1", lines(
		"#cloud-config",
		"hostname: Worker-1.example.com",
		"write_files:",
		"  - path: /etc/a",
		"    permissions: '0600'",
		"    content: hello",
		"runcmd:",
		"  - [systemctl, enable, --now, kubelet]",
	)))

	system, ok := vm.cloudInit()

	g.Expect(ok).To(BeTrue())
	g.Expect(system.hostname).To(Equal("worker-1"))
	g.Expect(system.service).To(Equal(kubeletService))
	g.Expect(system.addresses).To(HaveLen(1))
	g.Expect(disk.text("/etc/a")).To(Equal("hello"))
}

func TestCloudInitRunsOncePerInstance(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(nil)
	config := func(content string) string {
		return lines("#cloud-config", "write_files:", "  - {path: /etc/a, content: "+content+"}", "runcmd: [systemctl start kubelet]")
	}
	boot := func(images ...[]byte) system {
		s, ok := newGuest(disk, images...).cloudInit()
		g.Expect(ok).To(BeTrue())
		return s
	}

	boot(seedWith(t, "i-1", config("first")))
	boot(seedWith(t, "i-1", config("second")))
	g.Expect(disk.text("/etc/a")).To(Equal("first"), "the same instance is not configured again")

	withoutDrive := boot()
	g.Expect(withoutDrive.hostname).To(Equal("from-meta"))
	g.Expect(withoutDrive.service).To(Equal(kubeletService), "the kubelet's unit is enabled and comes up by itself")

	boot(seedWith(t, "i-2", config("third")))
	g.Expect(disk.text("/etc/a")).To(Equal("third"), "another instance is reconfigured")
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

func TestCloudInitStaysOffOnceDisabled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(nil)
	vm := newGuest(disk, seedWith(t, "i-1", lines("#cloud-config", "runcmd:", "  - [touch, /etc/cloud/cloud-init.disabled]")))
	vm.cloudInit()

	again := newGuest(disk, seedWith(t, "i-2", lines("#cloud-config", "hostname: other")))
	system, ok := again.cloudInit()

	g.Expect(ok).To(BeTrue())
	g.Expect(system.hostname).To(Equal("from-meta"))
}

func TestCloudInitNoDrive(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	vm := newGuest(newDisk(nil), newSeed(t, "other", map[string]string{"user-data": "", "meta-data": ""}))

	system, ok := vm.cloudInit()

	g.Expect(ok).To(BeTrue())
	g.Expect(system.service).To(BeEmpty())
	g.Expect(system.addresses).To(HaveLen(1), "it uses DHCP, and reports by its agent")
	g.Expect(vm.console.String()).To(ContainSubstring("no datasource found, no previous instance"))
}

func TestBootDriveInvalid(t *testing.T) {
	t.Parallel()
	image := seedWith(t, "i-1", "#cloud-config\n")
	truncated := bytes.Clone(image[:19*2048])
	noMetaData := newSeed(t, "cidata", map[string]string{"user-data": "#cloud-config\n"})
	for name, test := range map[string]struct {
		image []byte
		want  string
	}{
		"truncated":    {truncated, "cannot read the cidata drive"},
		"no meta-data": {noMetaData, "missing meta-data"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := newGuest(newDisk(nil), test.image)
			system, _ := vm.cloudInit()
			NewWithT(t).Expect(system.service).To(BeEmpty())
			NewWithT(t).Expect(vm.console.String()).To(ContainSubstring(test.want))
		})
	}
}

func TestWriteFilesEncodings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	g.Expect(zip.Write([]byte("hello"))).Error().NotTo(HaveOccurred())
	g.Expect(zip.Close()).To(Succeed())
	b64 := base64.StdEncoding.EncodeToString
	for name, test := range map[string]struct{ encoding, content, want, wantErr string }{
		"plain":      {"", "hello", "hello", ""},
		"text/plain": {"text/plain", "hello", "hello", ""},
		"base64":     {"b64", b64([]byte("hello"))[:4] + "\n" + b64([]byte("hello"))[4:], "hello", ""},
		"gzip b64":   {"gz+b64", b64(packed.Bytes()), "hello", ""},
		"long names": {"gzip+base64", b64(packed.Bytes()), "hello", ""},
		"bad base64": {"base64", "%%%", "", "encoding base64"},
		"bad gzip":   {"gz+b64", b64([]byte("hello")), "", "encoding gz+b64"},
		"unknown":    {"rot13", "uryyb", "", `unknown encoding "rot13"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			disk := newDisk(nil)
			err := writeFile{Path: "/etc/../etc/f", Content: test.content, Encoding: test.encoding}.write(disk)
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(disk.text("/etc/f")).To(Equal(test.want))
		})
	}
}

func TestWriteFilesAppend(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	disk := newDisk(nil)
	vm := newGuest(disk, seedWith(t, "i-1", lines(
		"#cloud-config",
		"write_files:",
		"  - {path: /f, content: one}",
		"  - {path: /f, content: two, append: true, permissions: 0644}",
		"  - {path: relative, content: x}",
		"  - {path: /g, content: x, permissions: rw}",
	)))
	vm.cloudInit()
	g.Expect(disk.text("/f")).To(Equal("onetwo"))
	g.Expect(vm.console.String()).To(ContainSubstring(`path "relative" is not absolute`))
	g.Expect(vm.console.String()).To(ContainSubstring(`/g: permissions "rw" are not an octal number`))
}

func TestUserDataInvalid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ userData, want string }{
		"bad YAML": {"#cloud-config\nruncmd: [", "user-data is not valid"},
		"Ignition": {`{"ignition": {"version": "3.4.0"}}`, "unknown user-data format"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := newGuest(newDisk(nil), seedWith(t, "i-1", test.userData))
			system, ok := vm.cloudInit()
			NewWithT(t).Expect(ok).To(BeTrue(), "the boot goes on")
			NewWithT(t).Expect(system.service).To(BeEmpty())
			NewWithT(t).Expect(vm.console.String()).To(ContainSubstring(test.want))
		})
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
	image := newSeed(t, "cidata", map[string]string{
		"meta-data":   "instance-id: i-1\n",
		"user-data":   lines("#cloud-config", "hostname: mine", "runcmd:", "  - [touch, /user]"),
		"vendor-data": lines("#cloud-config", "hostname: theirs", "write_files:", "  - {path: /vendor, content: x}", "runcmd:", "  - [touch, /vendor-command]"),
	})
	system, ok := newGuest(disk, image).cloudInit()
	g.Expect(ok).To(BeTrue())
	g.Expect(system.hostname).To(Equal("mine"))
	g.Expect(disk.Names()).To(And(ContainElement("/vendor"), ContainElement("/user"), Not(ContainElement("/vendor-command"))))
}
