// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// TestHardware boots VMs with different hardware. Their template is created from a downloaded image, as the controller
// does.
func TestHardware(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	t.Cleanup(func() {
		NewWithT(t).Expect(l.files("vm-3")).To(BeEmpty(), "files of deleted VMs")
	})
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bootSector()) }))
	t.Cleanup(images.Close)
	l.call("POST", "/nodes/pve1/storage/local/download-url", "content", "import", "filename", "a.raw", "url", images.URL)
	const disk = "local-lvm:0,import-from=local:import/a.raw"
	for i, tc := range []struct {
		name    string
		options []string
		want    string
	}{
		{"virtio-scsi-pci", []string{"scsi0", disk, "scsihw", "virtio-scsi-pci", "scsi1", "local-lvm:1"}, "boot 1"},
		{"virtio-scsi-single", []string{"scsi0", disk, "scsihw", "virtio-scsi-single", "scsi1", "local-lvm:cloudinit"}, "boot 1"},
		{"q35", []string{"scsi0", disk, "scsihw", "virtio-scsi-single", "machine", "q35", "ide1", "local-lvm:cloudinit", "sata1", "none,media=cdrom"}, "boot 1"},
		{"virtio-blk", []string{"virtio0", disk, "net0", "virtio,bridge=vmbr0", "net1", "e1000,bridge=vmbr0,tag=5", "rng0", "source=/dev/urandom"}, "boot 1"},
		{"sata", []string{"sata0", disk, "agent", "1", "vga", "std", "machine", "q35"}, "boot 1"},
		{"ide", []string{"ide0", disk, "ide3", "local-lvm:cloudinit"}, "boot 1"},
		{"ovmf", []string{"scsi0", disk, "scsihw", "virtio-scsi-pci", "bios", "ovmf", "efidisk0", "local-lvm:1,efitype=4m"}, "BdsDxe"},
		{"ovmf q35", []string{"scsi0", disk, "scsihw", "virtio-scsi-pci", "bios", "ovmf", "machine", "q35"}, "BdsDxe"},
		{"secure boot", []string{"scsi0", disk, "scsihw", "virtio-scsi-pci", "bios", "ovmf", "machine", "q35", "efidisk0", "local-lvm:1,efitype=4m,pre-enrolled-keys=1"}, "BdsDxe"},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if firmware, _ := filepath.Glob(uefiDir + "/OVMF_CODE*.fd"); tc.want == "BdsDxe" && firmware == nil {
				t.Skip("UEFI is not installed (Debian package ovmf)")
			}
			l := *l
			l.t = t
			vmid := 300 + i
			l.call("POST", "/nodes/pve1/qemu", append(tc.options, "vmid", strconv.Itoa(vmid), "memory", "128", "serial0", "socket")...)
			l.vm("POST", vmid, "/status/start")
			l.expectConsole(vmid, tc.want)
			l.vm("POST", vmid, "/status/stop")
			l.vm("DELETE", vmid, "")
		})
	}
}

// TestShares checks that QEMU connects to the server of a virtiofs share and accepts a 9p share.
func TestShares(t *testing.T) {
	t.Parallel()
	if !slices.ContainsFunc(virtiofsPrograms, func(p virtiofsProgram) bool { _, err := os.Stat(p.path); return err == nil }) {
		t.Skip("virtiofsd is not installed (Debian package virtiofsd)")
	}
	if os.Geteuid() != 0 {
		t.Skip("the virtiofsd of Debian 12 needs root")
	}
	l := newLab(t)
	l.sim.AddMapping(pvesim.Mapping{Kind: "dir", ID: "data", Map: []string{"node=pve1,path=" + t.TempDir()}})
	l.vm("POST", vmWithShares, "/status/start")
	l.eventually("a running guest", func() bool { _, err := l.runtime.runningGuest(vmWithShares); return err == nil })
	NewWithT(t).Expect(l.query(vmWithShares, "query-pci")).To(And(ContainSubstring("4186"), ContainSubstring("4105")), "virtiofs 0x105a, 9p 0x1009")
}
