// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// newVolume returns the image of a volume. If the volume is an image that we downloaded,
// its key marks it as used.
func newVolume(volume, kubeCluster string) Image {
	key, _ := parseImageKey(volume, kubeCluster)
	return Image{Name: path.Base(volume), Key: key, volume: volume}
}

// volumeStorage returns the storage of a volume, or "" if there is no volume.
func volumeStorage(volume string) string {
	storage, _, _ := strings.Cut(volume, ":")
	return storage
}

// volumeProblem returns why the Host cannot have the volume of the spec.
func volumeProblem(snapshot *observed.Snapshot, host, volume string) string {
	storage := volumeStorage(volume)
	if storage == "" {
		return ""
	}
	row, ok := snapshot.Storages[observed.StorageKey{Host: host, Storage: storage}]
	switch {
	case !ok:
		return fmt.Sprintf("spec.sourceImage.volume %q is on storage %s, which is not on this host; it has %s", volume, storage, strings.Join(snapshot.StoragesOf(host), ", "))
	case !slices.Contains(row.Content, "import"):
		return fmt.Sprintf("spec.sourceImage.volume %q is on storage %s, which does not take import content; run: pvesm set %s --content %s",
			volume, storage, storage, strings.Join(append([]string{"import"}, row.Content...), ","))
	case !row.Available:
		return inactiveStorage(storage)
	}
	return ""
}

// maxSimilar is how many images of a storage are listed if a volume is missing.
const maxSimilar = 3

// ensureVolume returns the volume of the spec. It fails if the Host does not have it.
func (r *hostReconciler) ensureVolume(ctx context.Context, location Location, volume string) (string, error) {
	volumes, err := r.listImages(ctx, location)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(volumes, func(v proxmox.Volume) bool { return v.ID == volume }) {
		return volume, nil
	}
	return "", fmt.Errorf("spec.sourceImage.volume %q does not exist on host %s: storage %s has %s; upload it there, or set a volume that exists",
		volume, r.Host, location.Images, describeImages(volumes, volume))
}

// describeImages lists the images whose names are most similar to a volume's.
func describeImages(volumes []proxmox.Volume, volume string) string {
	if len(volumes) == 0 {
		return "no images"
	}
	slices.SortFunc(volumes, func(a, b proxmox.Volume) int {
		return cmp.Or(cmp.Compare(commonPrefix(b.ID, volume), commonPrefix(a.ID, volume)), cmp.Compare(a.ID, b.ID))
	})
	var names []string
	for _, v := range volumes[:min(maxSimilar, len(volumes))] {
		names = append(names, v.ID)
	}
	text := strings.Join(names, ", ")
	if more := len(volumes) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// commonPrefix returns the length of the common prefix.
func commonPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
