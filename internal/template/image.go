// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path"
	"regexp"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Image is the file that a Template's disk is imported from.
type Image struct {
	// Name is the file name: <stem>-<key>.<extension>, or that of a volume.
	Name string
	// Key identifies the Kubernetes cluster and the content. Files that differ only in
	// their stem are the same image. It is empty for a volume that was not downloaded.
	Key       string
	extension string
	// mirrors are the URLs that the image is downloaded from, in this order. volume is an
	// image that exists on the Host and is not ours.
	mirrors []mirror
	volume  string
}

// formats maps file extensions to formats that Proxmox imports. Many cloud images in
// qcow2 format have the extension img.
var formats = map[string]string{"qcow2": "qcow2", "img": "qcow2", "raw": "raw", "vmdk": "vmdk"}

// archives are extensions of compressed files. Proxmox's download-url has a parameter for
// compression, which it accepts for ISO images only.
var archives = []string{"gz", "xz", "zst", "bz2", "lzo", "zip", "7z", "tar"}

var unsafeInName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// ErrChecksumUnresolved means that the checksum of an image has not been read from
// checksumURL.
var ErrChecksumUnresolved = errors.New("spec.sourceImage.checksumURL has not been read yet")

// NewImage returns the image file of a source. Its name contains a hash of URL and
// checksum, so a new image never overwrites one that is being imported, and a hash of
// the Kubernetes cluster, so images that another one downloaded are not deleted. It fails
// if the source is invalid, with ErrChecksumUnresolved if its checksum is unknown.
func NewImage(source v1alpha1.SourceImage, kubeCluster string) (Image, error) {
	if problem := source.Problem(); problem != "" {
		return Image{}, errors.New(problem)
	}
	if source.Volume != "" {
		return newVolume(source.Volume, kubeCluster), nil
	}
	mirrors, err := newMirrors(source)
	if err != nil {
		return Image{}, err
	}
	field, name := "spec.sourceImage.imageName", source.ImageName
	switch {
	case source.Talos != nil:
		name = "talos-" + source.Talos.Version + "-" + mirrors[0].base
	case name == "":
		field, name = "spec.sourceImage.imageName is empty, and the last part of "+mirrors[0].name, mirrors[0].base
	}
	extension, ok := formats[extensionOf(name)]
	if !ok {
		return Image{}, fmt.Errorf("%s is %q: its extension must be the format: qcow2, raw or vmdk (img means qcow2); set imageName, for example ubuntu-amd64.qcow2", field, name)
	}
	if source.ChecksumURL != "" && source.Checksum == "" {
		return Image{}, ErrChecksumUnresolved
	}
	stem := strings.Trim(unsafeInName.ReplaceAllString(strings.TrimSuffix(name, path.Ext(name)), "_"), "_.-")
	if stem == "" {
		stem = "image"
	}
	content := fnv.New64a()
	_, _ = fmt.Fprintf(content, "%s\x00%s\x00%s", contentLocation(source), source.ChecksumType, strings.ToLower(source.Checksum))
	key := clusterKey(kubeCluster) + fmt.Sprintf("%016x", content.Sum64())
	return Image{Name: stem + "-" + key + "." + extension, Key: key, extension: extension, mirrors: mirrors}, nil
}

func extensionOf(name string) string { return strings.ToLower(strings.TrimPrefix(path.Ext(name), ".")) }

func clusterKey(kubeCluster string) string {
	owner := fnv.New32a()
	_, _ = owner.Write([]byte(kubeCluster))
	return fmt.Sprintf("%08x", owner.Sum32())
}

var imageName = regexp.MustCompile(`-([0-9a-f]{8})([0-9a-f]{16})\.(qcow2|raw|vmdk)$`)

// findIn returns the volume of the image among the volumes of a storage.
func (i Image) findIn(volumes []proxmox.Volume) (volume string, ok bool) {
	for _, v := range volumes {
		if found := imageName.FindStringSubmatch(v.ID); found != nil && found[1]+found[2] == i.Key && found[3] == i.extension {
			return v.ID, true
		}
	}
	return "", false
}

// hasName reports whether a file name is that of the image, ignoring the stem.
func (i Image) hasName(name string) bool {
	_, ok := i.findIn([]proxmox.Volume{{ID: name}})
	return ok
}

// parseImageKey returns the key of an image that this Kubernetes cluster downloaded.
func parseImageKey(volume, kubeCluster string) (key string, ok bool) {
	found := imageName.FindStringSubmatch(volume)
	if found == nil || found[1] != clusterKey(kubeCluster) {
		return "", false
	}
	return found[1] + found[2], true
}
