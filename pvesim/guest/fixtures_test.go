// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// memoryDisk is an in-memory disk.
type memoryDisk struct {
	mu    sync.Mutex
	files map[string][]byte
}

func newDisk(files map[string]string) *memoryDisk {
	d := &memoryDisk{files: map[string][]byte{}}
	for name, content := range files {
		d.Write(name, []byte(content))
	}
	return d
}

func (d *memoryDisk) Read(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	content, ok := d.files[name]
	return bytes.Clone(content), ok
}

func (d *memoryDisk) Write(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[name] = bytes.Clone(data)
}

func (d *memoryDisk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.files))
}

func (d *memoryDisk) text(name string) string {
	content, _ := d.Read(name)
	return string(content)
}

// well is the health of a healthy guest.
func well() (pvesim.Health, <-chan struct{}) { return pvesim.HealthWell, nil }

// newGuest returns the guest of a small machine with one network card.
func newGuest(disk *memoryDisk, images ...[]byte) *guest {
	r := NewRuntime(Options{})
	return &guest{
		hardware: hardware{
			vmid: 100, uuid: "6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c", bootID: "boot-1",
			cores: 2, memory: 4 << 30, disk: 30 << 30, macs: []string{"BC:24:11:00:00:01"},
			storage: disk, drives: func() [][]byte { return images }, setAgent: func(*pvesim.Agent) {}, health: well,
		},
		runtime: r, console: r.console(100),
	}
}

// cloudInit runs cloud-init with the guest's drive.
func (g *guest) cloudInit() (system, bool) {
	s, found := findSeed(g.drives(), g.console)
	return g.runCloudInit(s, found)
}

// newSeed creates a NoCloud drive with an ISO writer other than the controller's.
func newSeed(t testing.TB, label string, files map[string]string) []byte {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "seed.iso"))
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(out.Close()).To(Succeed()) }()
	workspace := filepath.Join(dir, "files")
	g.Expect(os.Mkdir(workspace, 0o700)).To(Succeed())
	disc, err := iso9660.Create(file.New(out, false), 0, 0, 2048, workspace)
	g.Expect(err).NotTo(HaveOccurred())
	for name, content := range files {
		g.Expect(os.WriteFile(filepath.Join(workspace, name), []byte(content), 0o600)).To(Succeed())
	}
	g.Expect(disc.Finalize(iso9660.FinalizeOptions{RockRidge: true, VolumeIdentifier: label})).To(Succeed())
	image, err := os.ReadFile(out.Name())
	g.Expect(err).NotTo(HaveOccurred())
	return image
}

// seedWith returns a drive with this user-data and instance ID.
func seedWith(t testing.TB, instanceID, userData string) []byte {
	t.Helper()
	return newSeed(t, "cidata", map[string]string{
		"user-data": userData,
		"meta-data": "instance-id: " + instanceID + "\nlocal-hostname: from-meta\n",
	})
}

func lines(text ...string) string { return strings.Join(text, "\n") + "\n" }
