// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// kubernetes builds kubelet and kubeadm from the module and with the flags of kubeplane, so they share its build cache.
func (b build) kubernetes() error {
	list := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	list.Dir, list.Stderr = "kubeplane", os.Stderr
	output, err := list.Output()
	if err != nil {
		return fmt.Errorf("reading the version of Kubernetes: %w", err)
	}
	version := strings.TrimSpace(string(output))
	minor, _, _ := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
	flags := "-s -w"
	for _, name := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		flags += fmt.Sprintf(" -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=1 -X %[1]s.gitMinor=%[3]s -X %[1]s.gitTreeState=clean", name, version, minor)
	}
	for _, program := range []string{"kubelet", "kubeadm"} {
		if err := b.goBuild("kubeplane", program, "k8s.io/kubernetes/cmd/"+program, flags); err != nil {
			return err
		}
	}
	return nil
}

func (b build) goBuild(dir, program, pkg, flags string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", b.path(program), pkg)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s: %w", program, err)
	}
	return nil
}

// containerImages builds the images that guests need and cannot pull.
func (b build) containerImages() error {
	images := []containerImage{
		// The versions are those that containerd 1.6, 1.7 and 2 and the kubelet expect.
		{program: "pause", tags: []string{"registry.k8s.io/pause:3.6", "registry.k8s.io/pause:3.8", "registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10.1"}},
		{program: "guest-test", tags: []string{"localhost/guest-test:latest"}},
	}
	for n, image := range images {
		if err := b.goBuild(".", image.program, "./hack/guestimage/"+image.program, "-s -w"); err != nil {
			return err
		}
		content, err := os.ReadFile(b.path(image.program))
		if err != nil {
			return fmt.Errorf("reading %s: %w", image.program, err)
		}
		images[n].content = content
	}
	file, err := os.Create(b.path("images.tar"))
	if err != nil {
		return fmt.Errorf("creating the archive of images: %w", err)
	}
	if err := writeImages(file, images); err != nil {
		_ = file.Close()
		return fmt.Errorf("writing the archive of images: %w", err)
	}
	return file.Close()
}

// containerImage is an image with one static program.
type containerImage struct {
	program string
	content []byte
	tags    []string
}

// writeImages writes images in the format of "docker save", which "ctr images import" reads.
func writeImages(w io.Writer, images []containerImage) error {
	type entry struct {
		Config           string
		RepoTags, Layers []string
	}
	archive := tar.NewWriter(w)
	var manifest []entry
	for _, image := range images {
		var layer bytes.Buffer
		files := tar.NewWriter(&layer)
		if err := addFile(files, image.program, 0o755, image.content); err != nil {
			return err
		}
		if err := files.Close(); err != nil {
			return err
		}
		config, err := json.Marshal(map[string]any{
			"os": "linux", "architecture": "amd64",
			"config": map[string]any{"Entrypoint": []string{"/" + image.program}, "WorkingDir": "/"},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer.Bytes())}},
		})
		if err != nil {
			return err
		}
		e := entry{Config: digest(config) + ".json", RepoTags: image.tags, Layers: []string{digest(layer.Bytes()) + ".tar"}}
		manifest = append(manifest, e)
		if err := addFile(archive, e.Config, 0o644, config); err != nil {
			return err
		}
		if err := addFile(archive, e.Layers[0], 0o644, layer.Bytes()); err != nil {
			return err
		}
	}
	content, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if err := addFile(archive, "manifest.json", 0o644, content); err != nil {
		return err
	}
	return archive.Close()
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
