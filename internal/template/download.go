// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ensureImage returns the volume of the image. It downloads the image if the storage
// does not have it, once per storage.
func (r *hostReconciler) ensureImage(ctx context.Context, location Location) (string, error) {
	image, err := NewImage(r.desired.Spec.SourceImage, r.kubeCluster)
	if err != nil {
		return "", err
	}
	if image.volume != "" {
		return r.ensureVolume(ctx, location, image.volume)
	}
	hosts := r.hostsSharing(location.Images)
	release, ok := r.images.TryAcquire(fmt.Sprintf("%s/%s/%s/%s", r.Region, hosts[0], location.Images, image.Key))
	if !ok {
		// Without waiting: a download may take an hour, and the run holds a build slot.
		r.tracker.setStep(r.HostKey, "waiting for the image, which is already being downloaded")
		return "", errImageBusy
	}
	defer release()
	volume, ok, err := r.findImage(ctx, location, image)
	if ok || err != nil {
		return volume, err
	}
	task, err := r.runningDownload(ctx, hosts, image)
	if err != nil {
		return "", explain(err, location, "listing tasks", "")
	}
	if err := r.download(ctx, location, image, task); err != nil {
		return "", err
	}
	volume, ok, err = r.findImage(ctx, location, image)
	if err == nil && !ok {
		err = fmt.Errorf("downloading the image: the task succeeded, but storage %s does not list %s", location.Images, image.Name)
	}
	return volume, err
}

// hostsSharing returns the Hosts that have the same files on a storage, sorted by name.
func (r *hostReconciler) hostsSharing(storage string) []string {
	snapshot := r.inventory.View().Snapshots[r.Region]
	if !snapshot.Storages[observed.StorageKey{Host: r.Host, Storage: storage}].Shared {
		return []string{r.Host}
	}
	var hosts []string
	for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
		if _, has := snapshot.Storages[observed.StorageKey{Host: host, Storage: storage}]; has && (snapshot.IsOnline(host) || host == r.Host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

func (r *hostReconciler) findImage(ctx context.Context, location Location, image Image) (string, bool, error) {
	volumes, err := r.listImages(ctx, location)
	volume, ok := image.findIn(volumes)
	return volume, ok, err
}

func (r *hostReconciler) listImages(ctx context.Context, location Location) ([]proxmox.Volume, error) {
	volumes, err := r.client.Volumes(ctx, r.Host, location.Images, "import")
	return volumes, explain(err, location, fmt.Sprintf("listing the images on storage %s", location.Images), location.Images)
}

// runningDownload returns the task of a download of the image that an earlier run
// started, or "".
func (r *hostReconciler) runningDownload(ctx context.Context, hosts []string, image Image) (proxmox.UPID, error) {
	for _, host := range hosts {
		tasks, err := r.client.RunningTasks(ctx, host, "download")
		if err != nil {
			return "", err
		}
		for _, task := range tasks {
			if image.hasName(task.ID) {
				return task.UPID, nil
			}
		}
	}
	return "", nil
}

// progressInterval is how often the progress of a download is read.
const progressInterval = 5 * time.Second

// awaitDownload waits for a download and records its progress. A superseded download is
// canceled: it may take an hour.
func (r *hostReconciler) awaitDownload(ctx context.Context, location Location, task proxmox.UPID, from downloadFrom) error {
	r.tracker.setStep(r.HostKey, "downloading"+from.suffix)
	progressCtx, stop := context.WithCancel(ctx)
	left := make(chan bool, 1)
	go func() { left <- r.watchDownload(progressCtx, task, from) }()
	err := r.wait(ctx, r.client, task)
	stop()
	isUnresponsive := <-left
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errSuperseded):
		r.cancelDownload(ctx, task)
		return err
	case ctx.Err() != nil, errors.Is(err, errStillRunning):
		return err
	case errors.Is(err, proxmox.ErrExists):
		return nil // another download of the same image ended first
	case isUnresponsive:
		return &stepError{mirror: true, err: err, text: fmt.Sprintf("downloading the image: the server of %s did not respond to host %s within %s; fix it, check on the host with: curl -I %s",
			from.mirror.field(), r.Host, connectTimeout, from.mirror.redacted)}
	}
	if checksumMismatch.MatchString(err.Error()) {
		r.tracker.update(r.HostKey, func(s *hostState) { s.checksumMismatch = true })
	}
	log, _ := r.client.TaskLog(ctx, task)
	return explainDownload(err, log, r.desired, location, from.mirror)
}

// watchDownload records the progress of a download until the context ends. It cancels the
// download and returns true if its mirror does not respond and there is another one.
func (r *hostReconciler) watchDownload(ctx context.Context, task proxmox.UPID, from downloadFrom) bool {
	start := r.clock.Now()
	for r.sleep(ctx, progressInterval) == nil {
		log, err := r.client.TaskLog(ctx, task)
		if err != nil {
			continue
		}
		if percent := parseProgress(log); percent != "" {
			r.tracker.setStep(r.HostKey, "downloading "+percent+" %"+from.suffix)
		}
		if from.isUnresponsive(log, r.clock.Since(start)) && r.client.CancelTask(ctx, task) == nil {
			return true
		}
	}
	return false
}

// cancelDownload cancels a download unless another ProxmoxTemplate uses the image. If
// that fails, the download completes and the image is deleted by the next sweep.
func (r *hostReconciler) cancelDownload(ctx context.Context, task proxmox.UPID) {
	r.requestSweep()
	image, err := NewImage(r.desired.Spec.SourceImage, r.kubeCluster)
	if err != nil {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if shared, err := r.isImageShared(ctx, image); shared || err != nil {
		return
	}
	_ = r.client.CancelTask(ctx, task)
}

var percentage = regexp.MustCompile(`\s(\d{1,3})% `)

// parseProgress returns the last percentage in the output of wget, or "".
func parseProgress(log []string) string {
	for _, line := range slices.Backward(log) {
		if found := percentage.FindStringSubmatch(line); found != nil {
			return found[1]
		}
	}
	return ""
}
