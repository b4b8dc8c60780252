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
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/diskfs/go-diskfs/partition/gpt"
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
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWriteImages(t *testing.T) {
	t.Parallel()
	var archive bytes.Buffer
	images := []containerImage{
		{program: "pause", content: []byte("a program"), tags: []string{"registry.k8s.io/pause:3.8", "registry.k8s.io/pause:3.10"}},
		{program: "guest-test", content: []byte("another"), tags: []string{"localhost/guest-test:latest"}},
	}
	if err := writeImages(&archive, images); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, archive.Bytes())
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != len(images) {
		t.Fatalf("found the manifest %s: %v", files["manifest.json"], err)
	}
	for n, image := range images {
		var config struct {
			Config struct{ Entrypoint []string }
			RootFS struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		if err := json.Unmarshal(files[manifest[n].Config], &config); err != nil {
			t.Fatal(err)
		}
		layer := files[manifest[n].Layers[0]]
		if !slices.Equal(config.RootFS.DiffIDs, []string{"sha256:" + digest(layer)}) || !slices.Equal(config.Config.Entrypoint, []string{"/" + image.program}) {
			t.Errorf("%s: found the configuration %+v of layer %s", image.program, config, digest(layer))
		}
		if !slices.Equal(manifest[n].RepoTags, image.tags) || !bytes.Equal(unpack(t, layer)[image.program], image.content) {
			t.Errorf("%s: found tags %v and files %v", image.program, manifest[n].RepoTags, unpack(t, layer))
		}
	}
}

func TestBootPartitions(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "raw")
	raw, err := file.CreateFromPath(path, diskSize)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	core := bytes.Repeat([]byte{'c'}, 3*sector)
	boot := map[string][]byte{"boot.img": bytes.Repeat([]byte{'b'}, sector), "core.img": core, "bootx64.efi": bytes.Repeat([]byte("efi"), 100_000)}
	if err := writeBootPartitions(raw, boot); err != nil {
		t.Fatal(err)
	}

	table, err := gpt.Read(raw, sector, sector)
	if err != nil {
		t.Fatal(err)
	}
	if err := table.Verify(raw, diskSize); err != nil {
		t.Error(err)
	}
	last := uint64(0)
	for _, number := range []int{14, 15, 1} {
		at := slices.IndexFunc(table.Partitions, func(p *gpt.Partition) bool { return p.Index == number })
		if at < 0 || table.Partitions[at].Start <= last {
			t.Fatalf("partition %d is missing or in the wrong place: %+v", number, table.Partitions)
		}
		last = table.Partitions[at].End
	}
	if last > table.LastDataSector() {
		t.Errorf("partition 1 ends at %d, want at most %d", last, table.LastDataSector())
	}

	first := make([]byte, sector)
	if _, err := raw.ReadAt(first, 0); err != nil {
		t.Fatal(err)
	}
	if at := binary.LittleEndian.Uint64(first[0x5c:]); first[0] != 'b' || first[510] != 0x55 || at != biosBoot/sector {
		t.Errorf("the first sector loads sector %d, want %d: %x", at, biosBoot/sector, first)
	}
	system, err := fat32.Read(raw, root-esp, esp, sector)
	if err != nil {
		t.Fatal(err)
	}
	content, err := system.ReadFile("EFI/BOOT/BOOTX64.EFI")
	if err != nil || !bytes.Equal(content, boot["bootx64.efi"]) {
		t.Errorf("found a loader of %d bytes: %v", len(content), err)
	}
}

func TestIsCurrent(t *testing.T) {
	t.Parallel()
	work, image := t.TempDir(), filepath.Join(t.TempDir(), "debian-13")
	for _, name := range outputs {
		if err := os.WriteFile(filepath.Join(work, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if isCurrent(image, "a") {
		t.Error("an image that does not exist is current")
	}
	if err := publish(work, image, "a"); err != nil {
		t.Fatal(err)
	}
	if !isCurrent(image, "a") || isCurrent(image, "b") {
		t.Error("want the image to be current for the inputs that it was built from, and for no others")
	}
	if err := os.Remove(image + ".initrd"); err != nil {
		t.Fatal(err)
	}
	if isCurrent(image, "a") {
		t.Error("an image without its initial RAM disk is current")
	}
}

func TestMissingTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := checkTools(false)
	if err == nil || !strings.Contains(err.Error(), "apt-get install ") {
		t.Fatalf("found %v", err)
	}
	for _, name := range []string{"fakeroot", "mmdebstrap", "qemu-utils", "uidmap"} {
		if !strings.Contains(err.Error(), " "+name) {
			t.Errorf("%s is not in: %v", name, err)
		}
	}
}
