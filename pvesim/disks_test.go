// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// diskGuests copy the base of each disk to the disk and append their VMID, and report the result.
type diskGuests struct {
	content chan string
	updated chan *pvesim.Machine
}

func (d *diskGuests) Boot(ctx context.Context, m *pvesim.Machine) {
	var all []string
	for _, disk := range m.Disks() {
		data, err := os.ReadFile(disk.Path)
		if err != nil && disk.Base != "" {
			if data, err = os.ReadFile(disk.Base); err != nil {
				data = []byte(err.Error())
			}
		}
		text := fmt.Sprintf("%s+%d", data, m.VMID)
		if err := os.WriteFile(disk.Path, []byte(text), 0o600); err != nil {
			text = err.Error()
		}
		all = append(all, disk.Slot+"="+text)
	}
	slices.Sort(all)
	updated := m.Updated()
	d.content <- strings.Join(all, " ")
	for {
		select {
		case <-ctx.Done():
			return
		case <-updated:
			updated = m.Updated()
			d.updated <- m
		}
	}
}

func TestDisks(t *testing.T) { simulated(t, testDisks) }

func testDisks(t *testing.T, g *WithT) {
	dir, guests := t.TempDir(), &diskGuests{content: make(chan string, 10), updated: make(chan *pvesim.Machine, 10)}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: guests, Dir: dir, Web: image("image")})
	<-guests.content // of the running VM of the scenario
	boot := func(vmid int, want string) {
		t.Helper()
		c.task("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/status/start", vmid))
		g.Expect(<-guests.content).To(Equal(want), "VM %d", vmid)
		c.task("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/status/stop", vmid))
	}
	g.Expect(c.exit(c.download())).To(Equal("OK"))
	c.task("POST", "/nodes/pve1/qemu", "vmid", "300", "scsi0", "local-lvm:0,import-from=local:import/a.raw", "scsi1", "local-lvm:1")
	boot(300, "scsi0=image+300 scsi1=+300")
	boot(300, "scsi0=image+300+300 scsi1=+300+300")
	c.task("POST", "/nodes/pve1/qemu/300/clone", "newid", "301", "full", "1")
	boot(300, "scsi0=image+300+300+300 scsi1=+300+300+300")
	boot(301, "scsi0=image+300+300+301 scsi1=+300+300+301")
	c.task("POST", "/nodes/pve1/qemu/300/template")
	c.task("POST", "/nodes/pve1/qemu/300/clone", "newid", "302")
	c.ok("DELETE", "/nodes/pve1/storage/local/content/local:import/a.raw")
	boot(302, "scsi0=image+300+300+300+302 scsi1=+300+300+300+302")
	for _, vmid := range []int{302, 300} {
		c.task("DELETE", fmt.Sprintf("/nodes/pve1/qemu/%d", vmid))
	}
	boot(301, "scsi0=image+300+300+301+301 scsi1=+300+300+301+301")
	c.task("DELETE", "/nodes/pve1/qemu/301")
	entries, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries).To(HaveEach(HaveField("Name()", Or(HavePrefix("image-"), HavePrefix("vm-101-")))), "the image and the disk of the running VM")
}

func TestMachineUpdated(t *testing.T) { simulated(t, testMachineUpdated) }

func testMachineUpdated(t *testing.T, g *WithT) {
	guests := &diskGuests{content: make(chan string, 10), updated: make(chan *pvesim.Machine, 10)}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: guests, Dir: t.TempDir()})
	<-guests.content
	c.task("POST", "/nodes/pve1/qemu/101/status/suspend")
	g.Expect((<-guests.updated).Paused()).To(BeTrue(), "not paused after suspend")
	c.task("POST", "/nodes/pve1/qemu/101/status/resume")
	g.Expect((<-guests.updated).Paused()).To(BeFalse(), "paused after resume")
	c.task("PUT", "/nodes/pve1/qemu/101/resize", "disk", "scsi0", "size", "30G")
	g.Expect((<-guests.updated).Disks()[0].Bytes).To(BeEquivalentTo(30<<30), "disks after resize")
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "description", "changed")
	g.Expect((<-guests.updated).Options()["description"]).To(Equal("changed"))
}
