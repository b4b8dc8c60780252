// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func TestPack(t *testing.T) {
	t.Parallel()
	created := time.Unix(1700000000, 0).UTC()
	packed, err := pack([]file{{"pve-hook", 0o755, []byte("a binary")}, {"LICENSE", 0o644, []byte("a license")}}, created)
	if err != nil {
		t.Fatal(err)
	}
	_, files := unpack(t, packed)
	if want := map[string]string{"pve-hook": "a binary", "LICENSE": "a license"}; !reflect.DeepEqual(files, want) {
		t.Errorf("found the files %v, want %v", files, want)
	}
}

func TestKrewManifest(t *testing.T) {
	t.Parallel()
	r := release{version: "v1.2.3"}
	content, err := yaml.Marshal(r.krewManifest([]object{r.krewPlatform("windows", "arm64", "kubectl-proxmox_v1.2.3_windows_arm64.tar.gz", []byte("packed"))}))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version   string
			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal(content, &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Metadata.Name != "proxmox" || manifest.Spec.Version != "v1.2.3" || len(manifest.Spec.Platforms) != 1 {
		t.Fatalf("found %s", content)
	}
	p := manifest.Spec.Platforms[0]
	if p.Bin != "kubectl-proxmox.exe" || "sha256:"+p.SHA256 != digestOf([]byte("packed")) || p.Selector.MatchLabels["os"] != "windows" || p.Selector.MatchLabels["arch"] != "arm64" ||
		p.URI != repository+"/releases/download/v1.2.3/kubectl-proxmox_v1.2.3_windows_arm64.tar.gz" {
		t.Errorf("found the platform %+v", p)
	}
}

func TestProvenance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env                  map[string]string
		builder, uri, invoke string
	}{
		"local": {nil, "https://localhost/release", "git+" + repository + "@refs/tags/v1.2.3", "https://localhost/release/v1.2.3"},
		"workflow": {map[string]string{
			"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/r", "GITHUB_REF": "refs/tags/v1.2.3", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "2",
			"GITHUB_WORKFLOW_REF": "o/r/.github/workflows/release.yaml@refs/tags/v1.2.3",
		}, "https://github.com/o/r/.github/workflows/release.yaml@refs/tags/v1.2.3", "git+" + repository + "@refs/tags/v1.2.3", "https://github.com/o/r/actions/runs/7/attempts/2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content, err := json.Marshal(release{version: "v1.2.3"}.predicate("abc", func(key string) string { return c.env[key] }))
			if err != nil {
				t.Fatal(err)
			}
			found := decode[struct {
				BuildDefinition struct {
					ResolvedDependencies []struct {
						URI    string
						Digest map[string]string
					}
				}
				RunDetails struct {
					Builder  struct{ ID string }
					Metadata struct{ InvocationID string }
				}
			}](t, content)
			source := found.BuildDefinition.ResolvedDependencies[0]
			if found.RunDetails.Builder.ID != c.builder || found.RunDetails.Metadata.InvocationID != c.invoke || source.URI != c.uri || source.Digest["gitCommit"] != "abc" {
				t.Errorf("found %s", content)
			}
		})
	}
}

func TestUnknownCommand(t *testing.T) {
	t.Parallel()
	err := run([]string{"imag"})
	if want := `found the command "imag", want image, archives, provenance or notes`; err == nil || err.Error() != want {
		t.Errorf("found %v, want %s", err, want)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	r := release{out: filepath.Join(t.TempDir(), "new")}
	if err := r.write("krew.yaml", []byte("a: b\n")); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(r.out, "krew.yaml")); err != nil || string(content) != "a: b\n" {
		t.Errorf("found %q, %v", content, err)
	}
}
