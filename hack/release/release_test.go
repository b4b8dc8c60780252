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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

func decode[T any](t *testing.T, content []byte) T {
	t.Helper()
	var into T
	NewWithT(t).Expect(yaml.Unmarshal(content, &into)).To(Succeed())
	return into
}

var samples = []platform{{"amd64", []byte("a binary"), []byte("a bill")}, {"arm64", []byte("another"), []byte("another bill")}}

// writeImage returns the directory of an image and the content of its index.json.
func writeImage(t *testing.T) (dir string, index []byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "image")
	NewWithT(t).Expect(write(dir, "v1.2.3", time.Unix(1700000000, 0).UTC(), samples)).Error().NotTo(HaveOccurred())
	index, err := os.ReadFile(filepath.Join(dir, "index.json"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return dir, index
}

// descriptor refers to a blob.
type descriptor struct {
	Digest   string
	Size     int
	Platform struct{ Architecture string }
}

// blob reads the blob of a descriptor and checks its digest and size.
func blob(t *testing.T, dir string, d descriptor) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "blobs", strings.Replace(d.Digest, ":", "/", 1)))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect([]any{digestOf(content), len(content)}).To(Equal([]any{d.Digest, d.Size}))
	return content
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
	g := NewWithT(t)
	dir, top := writeImage(t)
	images := decode[index](t, blob(t, dir, decode[index](t, top).Manifests[0])).Manifests
	g.Expect(images).To(HaveLen(len(samples)))
	for n, image := range images {
		m := decode[manifest](t, blob(t, dir, image))
		g.Expect(m.Layers).To(HaveLen(1))
		content, files := unpack(t, blob(t, dir, m.Layers[0]))
		g.Expect(files).To(Equal(map[string]string{
			"controller": string(samples[n].binary), "usr/share/sbom/karpenter-provider-proxmox.spdx.json": string(samples[n].sbom),
		}))
		want := config{OS: "linux", Architecture: samples[n].arch}
		want.Config.User, want.Config.Entrypoint, want.RootFS.DiffIDs = "65532:65532", []string{"/controller"}, []string{digestOf(content)}
		g.Expect(decode[config](t, blob(t, dir, m.Config))).To(Equal(want))
		g.Expect(image.Platform.Architecture).To(Equal(samples[n].arch))
	}
	// The index contains the digests of all files.
	_, again := writeImage(t)
	g.Expect(string(again)).To(Equal(string(top)), "the image is not reproducible")
}

func unpack(t *testing.T, layer []byte) (content []byte, files map[string]string) {
	t.Helper()
	g := NewWithT(t)
	unzipped, err := gzip.NewReader(bytes.NewReader(layer))
	g.Expect(err).NotTo(HaveOccurred())
	content, err = io.ReadAll(unzipped)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(content)%512).To(BeZero(), "some readers reject an archive without an end")
	g.Expect(bytes.HasSuffix(content, make([]byte, 1024))).To(BeTrue(), "some readers reject an archive without an end")
	files = map[string]string{}
	for archive := tar.NewReader(bytes.NewReader(content)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return content, files
		}
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect([]int64{int64(header.Uid), header.Mode & 0o022, header.ModTime.Unix()}).To(Equal([]int64{0, 0, 1700000000}), header.Name)
		body, err := io.ReadAll(archive)
		g.Expect(err).NotTo(HaveOccurred())
		files[header.Name] = string(body)
	}
}

func TestPack(t *testing.T) {
	t.Parallel()
	packed, err := pack([]file{{"pve-hook", 0o755, []byte("a binary")}, {"LICENSE", 0o644, []byte("a license")}}, time.Unix(1700000000, 0))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, files := unpack(t, packed)
	NewWithT(t).Expect(files).To(Equal(map[string]string{"pve-hook": "a binary", "LICENSE": "a license"}))
}

func TestKrewManifest(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := release{version: "v1.2.3"}
	content, err := yaml.Marshal(r.krewManifest([]object{r.krewPlatform("windows", "arm64", "kubectl-proxmox_v1.2.3_windows_arm64.tar.gz", []byte("packed"))}))
	g.Expect(err).NotTo(HaveOccurred())
	type platform struct {
		Selector         struct{ MatchLabels map[string]string }
		URI, SHA256, Bin string
	}
	want := platform{
		URI: repository + "/releases/download/v1.2.3/kubectl-proxmox_v1.2.3_windows_arm64.tar.gz",
		Bin: "kubectl-proxmox.exe", SHA256: strings.TrimPrefix(digestOf([]byte("packed")), "sha256:"),
	}
	want.Selector.MatchLabels = map[string]string{"os": "windows", "arch": "arm64"}
	manifest := decode[struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []platform
		}
	}](t, content)
	g.Expect(manifest.Metadata.Name).To(Equal("proxmox"))
	g.Expect(manifest.Spec.Version).To(Equal("v1.2.3"))
	g.Expect(manifest.Spec.Platforms).To(ConsistOf(want))
}

func TestProvenance(t *testing.T) {
	t.Parallel()
	workflow := map[string]string{
		"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/r", "GITHUB_REF": "refs/tags/v1.2.3", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "2",
		"GITHUB_WORKFLOW_REF": "o/r/.github/workflows/release.yaml@refs/tags/v1.2.3",
	}
	for name, c := range map[string]struct {
		env             map[string]string
		builder, invoke string
	}{
		"local":    {nil, "https://localhost/release", "https://localhost/release/v1.2.3"},
		"workflow": {workflow, "https://github.com/o/r/.github/workflows/release.yaml@refs/tags/v1.2.3", "https://github.com/o/r/actions/runs/7/attempts/2"},
	} {
		content, err := json.Marshal(release{version: "v1.2.3"}.predicate("abc", func(key string) string { return c.env[key] }))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		for _, want := range []string{
			`"digest":{"gitCommit":"abc"},"uri":"git+` + repository + `@refs/tags/v1.2.3"`, `"builder":{"id":"` + c.builder + `"`, `"invocationId":"` + c.invoke + `"`,
		} {
			NewWithT(t).Expect(string(content)).To(ContainSubstring(want), name)
		}
	}
}

func TestUnknownCommand(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(run([]string{"imag"})).To(MatchError(`found the command "imag", want image, archives, provenance or notes`))
}

func TestWrite(t *testing.T) {
	t.Parallel()
	r := release{out: filepath.Join(t.TempDir(), "new")}
	NewWithT(t).Expect(r.write("krew.yaml", []byte("a: b\n"))).To(Succeed())
	NewWithT(t).Expect(os.ReadFile(filepath.Join(r.out, "krew.yaml"))).To(BeEquivalentTo("a: b\n"))
}

func TestBillOfMaterials(t *testing.T) {
	t.Parallel()
	// The test itself is a Go binary.
	own, err := os.Executable()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	content, err := billOfMaterials(own, "v1.2.3", time.Unix(0, 0))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	bill := decode[struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo string }
	}](t, content)
	NewWithT(t).Expect(bill.SPDXVersion).To(Equal("SPDX-2.3"))
	NewWithT(t).Expect(bill.Packages[1]).To(And(HaveField("Name", "stdlib"), HaveField("VersionInfo", HavePrefix("1."))))
}

func TestCheckStatic(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	NewWithT(t).Expect(checkStatic(bash)).To(MatchError(ContainSubstring("dynamic linker")))
}

func TestNotes(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const changelog = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.3 - 2026-11-20\n\n- See [upgrade](docs/upgrade.md).\n\n### Fixed\n\n- a bug\n\n## 1.2.0\n\n- old\n"
	for version, want := range map[string]string{
		"v1.2.3":      "- See [upgrade](" + repository + "/blob/main/docs/upgrade.md).\n\n### Fixed\n\n- a bug\n",
		"v1.2.0":      "- old\n",
		"v1.3.0-rc.1": "- new\n",
		"dev":         "- new\n",
	} {
		g.Expect(release{version: version}.changes(changelog)).To(Equal(want), version)
	}
	g.Expect(release{version: "v1.2"}.changes(changelog)).Error().To(MatchError(`CHANGELOG.md has no section "## 1.2"`))
	// The changelog has the section that a prerelease publishes.
	own, err := os.ReadFile("../../CHANGELOG.md")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(release{version: "dev"}.changes(string(own))).Error().NotTo(HaveOccurred())
}
