// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sigs.k8s.io/yaml"
)

const repository = "https://github.com/karpenter-proxmox/karpenter-provider-proxmox"

// plugin is the program that krew installs.
const plugin = "kubectl-proxmox"

// programs are the programs of a release, with the systems that they run on.
var programs = []struct {
	name    string
	systems []string
}{
	{plugin, []string{"linux", "darwin", "windows"}},
	{"pve-hook", []string{"linux"}},
	{"pvesim", []string{"linux", "darwin"}},
	{"controller", []string{"linux"}},
}

// archives writes an archive and a bill of materials of each program for each platform, and the manifest for krew.
func (r release) archives() error {
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return fmt.Errorf("reading the license: %w", err)
	}
	var platforms []object
	for _, program := range programs {
		for _, system := range program.systems {
			if !slices.Contains(r.systems, system) {
				continue
			}
			for _, arch := range r.arches {
				binary, sbom, err := r.build(program.name, system, arch)
				if err != nil {
					return err
				}
				name := fmt.Sprintf("%s_%s_%s_%s", program.name, r.version, system, arch)
				packed, err := pack([]file{{executable(program.name, system), 0o755, binary}, {"LICENSE", 0o644, license}}, r.created)
				if err != nil {
					return fmt.Errorf("packing %s: %w", name, err)
				}
				if err := r.write(name+".tar.gz", packed); err != nil {
					return err
				}
				if err := r.write(name+".spdx.json", sbom); err != nil {
					return err
				}
				if program.name == plugin {
					platforms = append(platforms, r.krewPlatform(system, arch, name+".tar.gz", packed))
				}
			}
		}
	}
	manifest, err := yaml.Marshal(r.krewManifest(platforms))
	if err != nil {
		return fmt.Errorf("encoding the manifest for krew: %w", err)
	}
	return r.write("krew.yaml", manifest)
}

// krewManifest returns the manifest of https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/.
func (r release) krewManifest(platforms []object) object {
	return object{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": object{"name": "proxmox"},
		"spec": object{
			"version": r.version, "homepage": repository, "platforms": platforms,
			"shortDescription": "Operate Karpenter for Proxmox VE",
			"description":      "Checks clusters and manifests, shows hosts and VMs live, explains why there is no VM for a pod, plans changes, lists orphans, and drains or fences Proxmox hosts.",
		},
	}
}

func (r release) krewPlatform(system, arch, archive string, packed []byte) object {
	sum := sha256.Sum256(packed)
	return object{
		"selector": object{"matchLabels": object{"os": system, "arch": arch}},
		"uri":      fmt.Sprintf("%s/releases/download/%s/%s", repository, r.version, archive),
		"sha256":   hex.EncodeToString(sum[:]),
		"bin":      executable(plugin, system),
		"files":    []object{{"from": executable(plugin, system), "to": "."}, {"from": "LICENSE", "to": "."}},
	}
}

func executable(program, system string) string {
	if system == "windows" {
		return program + ".exe"
	}
	return program
}

// write writes a file of the release.
func (r release) write(name string, content []byte) error {
	path := filepath.Join(r.out, name)
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return fmt.Errorf("creating %s: %w", r.out, err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	fmt.Println(path)
	return nil
}

// file is a file in an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// pack returns a compressed archive.
func pack(files []file, created time.Time) ([]byte, error) {
	content, err := archive(files, created)
	if err != nil {
		return nil, err
	}
	return compress(content)
}

// archive returns a tar archive. The files belong to root, so the user of a container cannot change them.
func archive(files []file, created time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: created, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil { // writes the end of the archive
		return nil, err
	}
	return out.Bytes(), nil
}

func compress(content []byte) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
