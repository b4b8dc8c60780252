// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Image is the file that a Template's disk is made from.
type Image struct {
	// Name of the file: <stem>-<key>.<extension>.
	Name string
	// Key says whose the file is and what is in it. The stem is for people: files
	// that differ in nothing else are the same image.
	Key       string
	extension string
}

// formats that Proxmox imports. Many cloud images are called .img and are qcow2.
var formats = map[string]string{"qcow2": "qcow2", "img": "qcow2", "raw": "raw", "vmdk": "vmdk"}

var packed = []string{"gz", "xz", "zst", "bz2", "lzo", "zip", "7z", "tar"}

var unsafeInName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// ImageOf names the file of an image. URL and checksum are in its name, so that a new
// image never takes the place of one that a Template is being made from, and so is
// the Kubernetes cluster: what another one downloaded is not ours to delete.
func ImageOf(source v1alpha1.SourceImage, kubeCluster string) (Image, error) {
	if problem := source.Problem(); problem != "" {
		return Image{}, errors.New(problem)
	}
	location, err := url.Parse(source.URL)
	if err != nil {
		return Image{}, fmt.Errorf("spec.sourceImage.url %q is no URL: %w", source.URL, err)
	}
	last := path.Base(location.Path)
	if end := extensionOf(last); slices.Contains(packed, end) {
		return Image{}, fmt.Errorf("spec.sourceImage.url ends in .%s: Proxmox unpacks ISO images only; name an image that is not packed, or unpack it onto a web server of yours", end)
	}
	field, name := "spec.sourceImage.imageName", source.ImageName
	if name == "" {
		field, name = "spec.sourceImage.imageName is empty, and the last part of url", last
	}
	extension, ok := formats[extensionOf(name)]
	if !ok {
		return Image{}, fmt.Errorf("%s is %q: its extension must tell the format, qcow2, raw or vmdk (img counts as qcow2); set imageName, for example ubuntu-amd64.qcow2", field, name)
	}
	stem := strings.Trim(unsafeInName.ReplaceAllString(strings.TrimSuffix(name, path.Ext(name)), "_"), "_.-")
	if stem == "" {
		stem = "image"
	}
	content := fnv.New64a()
	_, _ = fmt.Fprintf(content, "%s\x00%s\x00%s", source.URL, source.ChecksumType, strings.ToLower(source.Checksum))
	key := clusterKey(kubeCluster) + fmt.Sprintf("%016x", content.Sum64())
	return Image{Name: stem + "-" + key + "." + extension, Key: key, extension: extension}, nil
}

func extensionOf(name string) string { return strings.ToLower(strings.TrimPrefix(path.Ext(name), ".")) }

func clusterKey(kubeCluster string) string {
	owner := fnv.New32a()
	_, _ = owner.Write([]byte(kubeCluster))
	return fmt.Sprintf("%08x", owner.Sum32())
}

var imageName = regexp.MustCompile(`-([0-9a-f]{8})([0-9a-f]{16})\.(qcow2|raw|vmdk)$`)

// in finds the image among a storage's volumes.
func (i Image) in(volumes []proxmox.Volume) (volume string, ok bool) {
	for _, v := range volumes {
		if found := imageName.FindStringSubmatch(v.ID); found != nil && found[1]+found[2] == i.Key && found[3] == i.extension {
			return v.ID, true
		}
	}
	return "", false
}

// is tells whether a file name is this image's.
func (i Image) is(name string) bool {
	_, ok := i.in([]proxmox.Volume{{ID: name}})
	return ok
}

// ownImage reads the key of a volume that this Kubernetes cluster downloaded.
func ownImage(volume, kubeCluster string) (key string, ok bool) {
	found := imageName.FindStringSubmatch(volume)
	if found == nil || found[1] != clusterKey(kubeCluster) {
		return "", false
	}
	return found[1] + found[2], true
}
