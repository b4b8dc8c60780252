// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var samples = []platform{{"amd64", []byte("a binary"), []byte("a bill")}, {"arm64", []byte("another"), []byte("another bill")}}

func writeImage(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "image")
	if _, err := write(dir, "v1.2.3", time.Unix(1700000000, 0).UTC(), samples); err != nil {
		t.Fatal(err)
	}
	return dir
}

// descriptor refers to a blob.
type descriptor struct {
	MediaType, Digest string
	Size              int
	Platform          struct{ OS, Architecture string }
}

// blob reads the blob of a descriptor and checks its digest and size.
func blob(t *testing.T, dir string, d descriptor) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "blobs", strings.Replace(d.Digest, ":", "/", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if digestOf(content) != d.Digest || len(content) != d.Size {
		t.Errorf("blob %s has digest %s and %d bytes, want %d", d.Digest, digestOf(content), len(content), d.Size)
	}
	return content
}

func decode[T any](t *testing.T, content []byte) T {
	t.Helper()
	var into T
	if err := json.Unmarshal(content, &into); err != nil {
		t.Fatal(err)
	}
	return into
}

func TestImage(t *testing.T) {
	t.Parallel()
	type index struct{ Manifests []descriptor }
	type manifest struct {
		Config descriptor
		Layers []descriptor
	}
	type config struct {
		OS, Architecture string
		Config           struct {
			User       string
			Entrypoint []string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	dir := writeImage(t)
	top, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	images := decode[index](t, blob(t, dir, decode[index](t, top).Manifests[0])).Manifests
	if len(images) != len(samples) {
		t.Fatalf("found %d images, want %d", len(images), len(samples))
	}
	for n, image := range images {
		m := decode[manifest](t, blob(t, dir, image))
		c := decode[config](t, blob(t, dir, m.Config))
		if image.Platform.Architecture != samples[n].arch || c.Architecture != samples[n].arch || c.OS != "linux" {
			t.Errorf("image %d is for %s, %s, want %s", n, image.Platform.Architecture, c.Architecture, samples[n].arch)
		}
		if c.Config.User != "65532:65532" || !slices.Equal(c.Config.Entrypoint, []string{"/controller"}) || len(m.Layers) != 1 {
			t.Errorf("found the configuration %+v, %d layers", c.Config, len(m.Layers))
		}
		content, files := unpack(t, blob(t, dir, m.Layers[0]))
		if !slices.Equal(c.RootFS.DiffIDs, []string{digestOf(content)}) {
			t.Errorf("the configuration names the layer %v, it is %s", c.RootFS.DiffIDs, digestOf(content))
		}
		want := map[string]string{"controller": string(samples[n].binary), "usr/share/sbom/karpenter-provider-proxmox.spdx.json": string(samples[n].sbom)}
		if !maps.Equal(files, want) {
			t.Errorf("found the files %v, want %v", files, want)
		}
	}
}

func unpack(t *testing.T, layer []byte) (content []byte, files map[string]string) {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	if content, err = io.ReadAll(unzipped); err != nil {
		t.Fatal(err)
	}
	if len(content)%512 != 0 || !bytes.HasSuffix(content, make([]byte, 1024)) {
		t.Error("the archive has no end, which some readers reject")
	}
	files = map[string]string{}
	for archive := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return content, files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Mode&0o022 != 0 || header.ModTime.Unix() != 1700000000 {
			t.Errorf("%s belongs to %d, has mode %o and the time %s", header.Name, header.Uid, header.Mode, header.ModTime)
		}
		body, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(body)
	}
}

func TestImageIsReproducible(t *testing.T) {
	t.Parallel()
	a, b := contents(t, writeImage(t)), contents(t, writeImage(t))
	if len(a) < 8 || !maps.Equal(a, b) {
		t.Errorf("found %v and %v", slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b)))
	}
}

// contents returns the contents of all files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestBillOfMaterials(t *testing.T) {
	t.Parallel()
	// The test itself is a Go binary.
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := billOfMaterials(own, "v1.2.3", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	bill := decode[struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo string }
	}](t, content)
	if bill.SPDXVersion != "SPDX-2.3" || len(bill.Packages) < 2 || bill.Packages[1].Name != "stdlib" || !strings.HasPrefix(bill.Packages[1].VersionInfo, "1.") {
		t.Errorf("found %s", content)
	}
}

func TestCheckStatic(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	if err := checkStatic(bash); err == nil || !strings.Contains(err.Error(), "dynamic linker") {
		t.Errorf("%s: found %v", bash, err)
	}
}
