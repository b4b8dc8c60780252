// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

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

func TestDisks(t *testing.T) {
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("image")) }))
	t.Cleanup(images.Close)
	simulated(t, func(t *testing.T) { testDisks(t, images.URL) })
}

func testDisks(t *testing.T, image string) {
	t.Helper()
	dir, guests := t.TempDir(), &diskGuests{content: make(chan string, 10), updated: make(chan *pvesim.Machine, 10)}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: guests, Dir: dir})
	<-guests.content // of the running VM of the scenario
	boot := func(vmid int, want string) {
		t.Helper()
		c.task("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/status/start", vmid))
		if got := <-guests.content; got != want {
			t.Errorf("VM %d: got %q, want %q", vmid, got, want)
		}
		c.task("POST", fmt.Sprintf("/nodes/pve1/qemu/%d/status/stop", vmid))
	}
	c.task("POST", "/nodes/pve1/storage/local/download-url", "content", "import", "filename", "a.raw", "url", image)
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
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries { // the image and the disk of the running VM
		if !strings.HasPrefix(e.Name(), "image-") && !strings.HasPrefix(e.Name(), "vm-101-") {
			t.Errorf("%s was not removed", e.Name())
		}
	}
}

func TestMachineUpdated(t *testing.T) { simulated(t, testMachineUpdated) }

func testMachineUpdated(t *testing.T) {
	guests := &diskGuests{content: make(chan string, 10), updated: make(chan *pvesim.Machine, 10)}
	c := startSim(t, pvesim.DefaultScenario(1), pvesim.Options{Guests: guests, Dir: t.TempDir()})
	<-guests.content
	c.task("POST", "/nodes/pve1/qemu/101/status/suspend")
	if m := <-guests.updated; !m.Paused() {
		t.Error("not paused after suspend")
	}
	c.task("POST", "/nodes/pve1/qemu/101/status/resume")
	if m := <-guests.updated; m.Paused() {
		t.Error("paused after resume")
	}
	c.task("PUT", "/nodes/pve1/qemu/101/resize", "disk", "scsi0", "size", "30G")
	if disks := (<-guests.updated).Disks(); disks[0].Bytes != 30<<30 {
		t.Errorf("disks after resize: %+v", disks)
	}
	c.ok("PUT", "/nodes/pve1/qemu/101/config", "description", "changed")
	if options := (<-guests.updated).Options(); options["description"] != "changed" {
		t.Errorf("options: %v", options)
	}
}
