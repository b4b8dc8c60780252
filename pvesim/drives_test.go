// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A CD drive can be on SCSI. Its medium can be ejected without hotplug of disks.
func TestSCSIDrive(t *testing.T) { simulated(t, testSCSIDrive) }

func testSCSIDrive(t *testing.T, g *WithT) {
	w := &recordingGuest{}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: w})
	c.exit(c.uploadISO("a.iso", []byte("iso")).Data)
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "scsi30", "local:iso/a.iso,media=cdrom", "delete", "ide2", "boot", "order=scsi0;scsi30", "hotplug", "network")
	c.task("POST", "/nodes/pve1/qemu/300/status/start")
	boots, _ := w.seen()
	if cds := boots[0].CDROMs(); len(cds) != 1 || cds[0].Slot != "scsi30" {
		t.Fatalf("CD drives: %v", cds)
	}
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "scsi30", "none,media=cdrom")
	g.Expect(boots[0].CDROMs()).To(BeEmpty(), "after eject")
	for _, entry := range c.ok("GET", "/nodes/pve1/qemu/300/pending").([]any) {
		g.Expect(entry.(map[string]any)["pending"]).To(BeNil())
	}
}

// A protected VM keeps its drives, even if the same write removes the protection. Their
// volumes can be replaced.
func TestRemoveDriveOfProtectedVM(t *testing.T) { simulated(t, testRemoveDriveOfProtectedVM) }

func testRemoveDriveOfProtectedVM(t *testing.T, _ *WithT) {
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{})
	c.task("POST", "/nodes/pve1/qemu/9000/clone", "newid", "300")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "protection", "1")
	c.refused(http.StatusInternalServerError, "can't remove drive 'ide2' - protection mode enabled",
		"PUT", "/nodes/pve1/qemu/300/config", "delete", "ide2", "protection", "0")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "ide2", "none,media=cdrom", "protection", "0")
	c.ok("PUT", "/nodes/pve1/qemu/300/config", "delete", "ide2")
}
