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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ensureImage answers the volume of the image, and downloads it where it is not yet:
// once per storage, whoever needs it.
func (t *tending) ensureImage(ctx context.Context, place Location) (string, error) {
	image, err := ImageOf(t.wish.Spec.SourceImage, t.KubeCluster)
	if err != nil {
		return "", err
	}
	hosts := t.sharers(place.Images)
	t.memory.doing(t.spot, "waiting for the image")
	done, err := t.images.take(ctx, fmt.Sprintf("%s/%s/%s/%s", t.region, hosts[0], place.Images, image.Key))
	if err != nil {
		return "", err
	}
	defer done()
	volume, ok, err := t.find(ctx, place, image)
	if ok || err != nil {
		return volume, err
	}
	task, err := t.downloading(ctx, hosts, image)
	if err != nil {
		return "", explain(err, place, "looking for tasks", "")
	}
	if task == "" {
		source := t.wish.Spec.SourceImage
		task, err = t.client.DownloadImage(ctx, proxmox.DownloadRequest{
			Host: t.host, Storage: place.Images, Name: image.Name, URL: source.URL, Checksum: source.Checksum, ChecksumType: source.ChecksumType,
		})
		if err != nil {
			return "", explainDownload(err, nil, t.wish, place)
		}
	}
	if err := t.awaitDownload(ctx, place, task); err != nil {
		return "", err
	}
	volume, ok, err = t.find(ctx, place, image)
	if err == nil && !ok {
		err = fmt.Errorf("downloading the image: Proxmox says that it did, but storage %s does not list %s", place.Images, image.Name)
	}
	return volume, err
}

// sharers are the Hosts that see the same files as ours on a storage, by name.
func (t *tending) sharers(storage string) []string {
	snapshot := t.Inventory.View().Snapshots[t.region]
	if !snapshot.Storages[inventory.StorageKey{Host: t.host, Storage: storage}].Shared {
		return []string{t.host}
	}
	var hosts []string
	for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
		if _, has := snapshot.Storages[inventory.StorageKey{Host: host, Storage: storage}]; has && (snapshot.Hosts[host].Online || host == t.host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

func (t *tending) find(ctx context.Context, place Location, image Image) (string, bool, error) {
	volumes, err := t.client.Volumes(ctx, t.host, place.Images, "import")
	if err != nil {
		return "", false, explain(err, place, fmt.Sprintf("listing the images on storage %s", place.Images), place.Images)
	}
	volume, ok := image.in(volumes)
	return volume, ok, nil
}

// downloading finds a download of the image that an earlier run started.
func (t *tending) downloading(ctx context.Context, hosts []string, image Image) (proxmox.UPID, error) {
	for _, host := range hosts {
		tasks, err := t.client.RunningTasks(ctx, host, "download")
		if err != nil {
			return "", err
		}
		for _, task := range tasks {
			if image.is(task.ID) {
				return task.UPID, nil
			}
		}
	}
	return "", nil
}

// progressInterval is how often a download is asked how far it is.
const progressInterval = 5 * time.Second

// awaitDownload waits for a download and tells how far it is. One that nobody asks
// for any more is broken off: it may take an hour.
func (t *tending) awaitDownload(ctx context.Context, place Location, task proxmox.UPID) error {
	t.memory.doing(t.spot, "downloading")
	watch, stop := context.WithCancel(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		for t.pause(watch, progressInterval) == nil {
			if log, err := t.client.TaskLog(watch, task); err == nil {
				if percent := percentOf(log); percent != "" {
					t.memory.doing(t.spot, "downloading "+percent+" %")
				}
			}
		}
	}()
	err := t.wait(ctx, t.client, task, t.key(place.Images))
	stop()
	<-watching
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errSuperseded):
		t.breakOff(ctx, task)
		return err
	case ctx.Err() != nil, errors.Is(err, errStillRunning):
		return err
	case errors.Is(err, proxmox.ErrExists):
		return nil // somebody else's was quicker
	}
	log, _ := t.client.TaskLog(ctx, task)
	return explainDownload(err, log, t.wish, place)
}

const cancelTimeout = 10 * time.Second

// breakOff ends a download, unless another ProxmoxTemplate waits for the same image.
// Where that fails, it ends by itself and the image is swept up.
func (t *tending) breakOff(ctx context.Context, task proxmox.UPID) {
	t.memory.sweepSoon()
	image, err := ImageOf(t.wish.Spec.SourceImage, t.KubeCluster)
	if err != nil || t.sharedImage(image) {
		return
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer done()
	_ = t.client.CancelTask(ctx, task)
}

var percentage = regexp.MustCompile(`\s(\d{1,3})% `)

// percentOf reads the progress out of what wget prints.
func percentOf(log []string) string {
	for _, line := range slices.Backward(log) {
		if found := percentage.FindStringSubmatch(line); found != nil {
			return found[1]
		}
	}
	return ""
}
