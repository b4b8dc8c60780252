// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// deleteUnusedImages sweeps the Host if a sweep is due. Otherwise it returns the error of the
// last one.
func (r *hostReconciler) deleteUnusedImages(ctx context.Context, obs observation) (time.Duration, error) {
	if !r.tracker.tryStartSweep(r.Region, r.Host, r.clock.Now(), func() bool { return r.inventory.TryAcquire(r.Region, inventory.ReadImages) }) {
		return 0, r.tracker.sweepFailure(r.Region, r.Host)
	}
	return r.sweep(ctx, obs)
}

// sweep deletes images that we downloaded and that no ProxmoxTemplate uses for the grace
// period, and boot drives of builder VMs that no longer exist. It returns the remaining time
// of the grace period.
func (r *hostReconciler) sweep(ctx context.Context, obs observation) (time.Duration, error) {
	now := r.clock.Now()
	var after time.Duration
	var errs []error
	for _, storage := range r.storagesWith(obs, "import") {
		left, err := r.deleteUnusedImagesOn(ctx, obs, storage)
		errs, after = append(errs, err), soonest(after, left)
	}
	left, err := r.deleteUnusedBootDrives(ctx, obs)
	after, err = soonest(after, left), joinErrors(append(errs, err)...)
	if ctx.Err() == nil { // otherwise it stays due
		// An image in its grace period makes the next sweep due when the period ends.
		r.tracker.recordSweep(r.Region, r.Host, now, after, err)
	}
	if err != nil {
		return 0, err
	}
	return after, nil
}

// storagesWith returns the active storages of the Host with a content type, sorted.
func (r *hostReconciler) storagesWith(obs observation, content string) []string {
	var out []string
	for key, row := range obs.view.Snapshots[r.Region].Storages {
		if key.Host == r.Host && row.Available && slices.Contains(row.Content, content) {
			out = append(out, key.Storage)
		}
	}
	slices.Sort(out)
	return out
}

// deleteUnusedImagesOn deletes the unused images on one storage. An image that cannot be
// deleted does not affect the others.
func (r *hostReconciler) deleteUnusedImagesOn(ctx context.Context, obs observation, storage string) (after time.Duration, err error) {
	volumes, err := r.client.Volumes(ctx, r.Host, storage, "import")
	if _, hidden := errors.AsType[*proxmox.ForbiddenError](err); hidden && !slices.Contains(r.desired.Spec.StorageIDs, storage) {
		return 0, nil // without access we cannot have downloaded images there
	}
	if err != nil {
		return 0, explain(err, obs.location, fmt.Sprintf("listing the images on storage %s", storage), storage)
	}
	var errs []error
	for _, volume := range volumes {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		left, err := r.deleteUnusedImage(ctx, volume.ID, storage)
		errs = append(errs, explain(err, obs.location, fmt.Sprintf("deleting image %s", volume.ID), storage))
		after = soonest(after, left)
	}
	return after, joinErrors(errs...)
}

// deleteUnusedImage deletes an image that is unused for the grace period, and returns
// the remaining time of the period. An image of a ProxmoxTemplate that is being deleted
// has none.
func (r *hostReconciler) deleteUnusedImage(ctx context.Context, volume, storage string) (time.Duration, error) {
	key, owned := parseImageKey(volume, r.kubeCluster)
	if !owned {
		return 0, nil
	}
	usage, err := r.usage(ctx)
	if err != nil {
		return 0, err
	}
	view, now := r.inventory.View(), r.clock.Now()
	needed := r.desiredImages(view, usage)[imageAt{r.Region, r.Host, storage, key}]
	image := imageAt{region: r.Region, storage: storage, key: key}
	if !view.Snapshots[r.Region].Storages[inventory.StorageKey{Host: r.Host, Storage: storage}].Shared {
		image.host = r.Host
	}
	since, unneeded := r.tracker.unneededSince(image, needed, now)
	if !unneeded {
		return 0, nil
	}
	if left := r.settings.GracePeriod - now.Sub(since); left > 0 && !r.isImageDeleted(key) {
		return left, nil
	}
	if err := r.deleteVolume(ctx, volume); err != nil {
		return 0, err
	}
	r.tracker.evictUnneeded(image)
	log.FromContext(ctx).Info("deleted unused image", "volume", volume, "host", r.Host)
	return 0, nil
}

// isImageDeleted reports whether an image is to be deleted with its ProxmoxTemplate.
func (r *hostReconciler) isImageDeleted(key string) bool {
	image, err := NewImage(r.desired.Spec.SourceImage, r.kubeCluster)
	return err == nil && r.desired.Deleted && image.volume == "" && image.Key == key
}

// imageAt identifies an image on a storage of a Host, or without a Host, on a shared
// storage.
type imageAt struct{ region, host, storage, key string }

// desiredImages returns the images that ProxmoxTemplates use, on all Hosts that have the
// storage.
func (r *hostReconciler) desiredImages(view inventory.View, usage Usage) map[imageAt]bool {
	out := map[imageAt]bool{}
	snapshot := view.Snapshots[r.Region]
	for _, desired := range usage.Desired {
		image, err := NewImage(desired.Spec.SourceImage, r.kubeCluster)
		if err != nil || !desired.appliesTo(r.Region) {
			continue
		}
		for host := range snapshot.Hosts {
			location, _ := selectStorages(snapshot, host, desired.Spec)
			if location.Images == "" || location.Storage == "" {
				continue
			}
			out[imageAt{r.Region, host, location.Images, image.Key}] = true
			if !snapshot.Storages[inventory.StorageKey{Host: host, Storage: location.Images}].Shared {
				continue
			}
			for other := range snapshot.Hosts {
				out[imageAt{r.Region, other, location.Images, image.Key}] = true
			}
		}
	}
	return out
}
