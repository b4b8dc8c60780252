// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/diskfs/go-diskfs/partition/gpt"
	. "github.com/onsi/gomega"
)

// unpack returns the contents of the files of an archive by name.
func unpack(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		files[header.Name], err = io.ReadAll(archive)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
	}
}

func TestWriteImages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var archive bytes.Buffer
	images := []containerImage{
		{program: "pause", content: []byte("a program"), tags: []string{"registry.k8s.io/pause:3.8", "registry.k8s.io/pause:3.10"}},
		{program: "guest-test", content: []byte("another"), tags: []string{"localhost/guest-test:latest"}},
	}
	g.Expect(writeImages(&archive, images)).To(Succeed())
	files := unpack(t, archive.Bytes())
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	g.Expect(json.Unmarshal(files["manifest.json"], &manifest)).To(Succeed())
	g.Expect(manifest).To(HaveLen(len(images)))
	for n, image := range images {
		var config struct {
			Config struct{ Entrypoint []string }
			RootFS struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		g.Expect(json.Unmarshal(files[manifest[n].Config], &config)).To(Succeed())
		layer := files[manifest[n].Layers[0]]
		g.Expect(config.RootFS.DiffIDs).To(Equal([]string{"sha256:" + digest(layer)}))
		g.Expect(config.Config.Entrypoint).To(Equal([]string{"/" + image.program}))
		g.Expect(manifest[n].RepoTags).To(Equal(image.tags))
		g.Expect(unpack(t, layer)).To(HaveKeyWithValue(image.program, image.content))
	}
}

func TestBootPartitions(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	raw, err := file.CreateFromPath(filepath.Join(t.TempDir(), "raw"), diskSize)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = raw.Close() }()
	core := bytes.Repeat([]byte{'c'}, 3*sector)
	boot := map[string][]byte{"boot.img": bytes.Repeat([]byte{'b'}, sector), "core.img": core, "bootx64.efi": bytes.Repeat([]byte("efi"), 100_000)}
	g.Expect(writeBootPartitions(raw, boot)).To(Succeed())

	table, err := gpt.Read(raw, sector, sector)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(table.Verify(raw, diskSize)).To(Succeed())
	last := uint64(0)
	for _, number := range []int{14, 15, 1} {
		at := slices.IndexFunc(table.Partitions, func(p *gpt.Partition) bool { return p.Index == number })
		g.Expect(at).To(BeNumerically(">=", 0), "partition %d is missing", number)
		g.Expect(table.Partitions[at].Start).To(BeNumerically(">", last), "partition %d", number)
		last = table.Partitions[at].End
	}
	g.Expect(last).To(BeNumerically("<=", table.LastDataSector()))

	first := make([]byte, sector)
	g.Expect(raw.ReadAt(first, 0)).Error().NotTo(HaveOccurred())
	g.Expect([]byte{first[0], first[510]}).To(Equal([]byte{'b', 0x55}))
	g.Expect(binary.LittleEndian.Uint64(first[0x5c:])).To(BeEquivalentTo(biosBoot/sector), "the sector that the first one loads")
	system, err := fat32.Read(raw, root-esp, esp, sector)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := system.ReadFile("EFI/BOOT/BOOTX64.EFI")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(bytes.Equal(content, boot["bootx64.efi"])).To(BeTrue(), "found a loader of %d bytes", len(content))
}

func TestIsCurrent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	work, image := t.TempDir(), filepath.Join(t.TempDir(), "debian-13")
	for _, name := range outputs {
		g.Expect(os.WriteFile(filepath.Join(work, name), []byte(name), 0o600)).To(Succeed())
	}
	g.Expect(isCurrent(image, "a")).To(BeFalse(), "the image does not exist")
	g.Expect(publish(work, image, "a")).To(Succeed())
	g.Expect(isCurrent(image, "a")).To(BeTrue(), "the image was built from these inputs")
	g.Expect(isCurrent(image, "b")).To(BeFalse(), "the image was built from other inputs")
	g.Expect(os.Remove(image + ".initrd")).To(Succeed())
	g.Expect(isCurrent(image, "a")).To(BeFalse(), "the image has no initial RAM disk")
}

func TestMissingTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := checkTools(false)
	for _, text := range []string{"apt-get install ", " fakeroot", " mmdebstrap", " qemu-utils", " uidmap"} {
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(text)))
	}
}
