// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// nonroot is the user of the chart's security context. It has no name and no home directory.
const nonroot = "65532:65532"

// The media types of https://github.com/opencontainers/image-spec.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// platform is the image for one architecture.
type platform struct {
	arch         string
	binary, sbom []byte
}

type object map[string]any

// layout is the directory of an OCI image layout.
type layout struct{ dir string }

// write writes the image into a directory and returns its digest.
func write(dir, version string, created time.Time, platforms []platform) (digest string, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("emptying %s: %w", dir, err)
	}
	l := layout{dir}
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return "", fmt.Errorf("creating %s: %w", dir, err)
	}
	labels := object{
		"org.opencontainers.image.title":    "karpenter-provider-proxmox",
		"org.opencontainers.image.source":   repository,
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.created":  created.Format(time.RFC3339),
	}
	var manifests []object
	for _, p := range platforms {
		manifest, err := l.platform(p, created, labels)
		if err != nil {
			return "", err
		}
		manifest["platform"] = object{"os": "linux", "architecture": p.arch}
		manifests = append(manifests, manifest)
	}
	image, err := l.encode(typeIndex, object{"schemaVersion": 2, "mediaType": typeIndex, "manifests": manifests, "annotations": labels})
	if err != nil {
		return "", err
	}
	image["annotations"] = object{"org.opencontainers.image.ref.name": version}
	if err := l.file("index.json", object{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []object{image}}); err != nil {
		return "", err
	}
	digest, _ = image["digest"].(string)
	return digest, l.file("oci-layout", object{"imageLayoutVersion": "1.0.0"})
}

// platform writes layer, configuration and manifest of one architecture.
func (l layout) platform(p platform, created time.Time, labels object) (object, error) {
	content, err := archive([]file{
		{"controller", 0o755, p.binary},
		{"usr/share/sbom/karpenter-provider-proxmox.spdx.json", 0o644, p.sbom},
	}, created)
	if err != nil {
		return nil, fmt.Errorf("packing the layer: %w", err)
	}
	packed, err := compress(content)
	if err != nil {
		return nil, fmt.Errorf("packing the layer: %w", err)
	}
	layer, err := l.blob(typeLayer, packed)
	if err != nil {
		return nil, err
	}
	config, err := l.encode(typeConfig, object{
		"created": created.Format(time.RFC3339), "os": "linux", "architecture": p.arch,
		"config":  object{"User": nonroot, "Entrypoint": []string{"/controller"}, "WorkingDir": "/", "Labels": labels},
		"rootfs":  object{"type": "layers", "diff_ids": []string{digestOf(content)}},
		"history": []object{{"created": created.Format(time.RFC3339), "created_by": "hack/release"}},
	})
	if err != nil {
		return nil, err
	}
	return l.encode(typeManifest, object{"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": []object{layer}, "annotations": labels})
}

func (l layout) encode(mediaType string, what object) (object, error) {
	content, err := json.Marshal(what) // sorts the keys of maps
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", mediaType, err)
	}
	return l.blob(mediaType, content)
}

// blob writes content to a file that is named after its digest, and returns the descriptor.
func (l layout) blob(mediaType string, content []byte) (object, error) {
	digest := digestOf(content)
	path := filepath.Join(l.dir, "blobs", "sha256", digest[len("sha256:"):])
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return nil, fmt.Errorf("writing %s: %w", path, err)
	}
	return object{"mediaType": mediaType, "digest": digest, "size": len(content)}, nil
}

func (l layout) file(name string, what object) error {
	content, err := json.Marshal(what)
	if err == nil {
		err = os.WriteFile(filepath.Join(l.dir, name), content, 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
