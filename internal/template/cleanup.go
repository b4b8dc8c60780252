// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// cleanupParallelism is how many Hosts are checked concurrently.
const cleanupParallelism = 8

// Cleanup checks every Host for operations of a deleted ProxmoxTemplate that are still
// in progress, which no view shows, and deletes its images. It returns what is still to
// be deleted. A Host or storage that fails does not affect the others; the error contains all
// failures.
func (p *Provider) Cleanup(ctx context.Context, desired Desired, usage ListUsage) ([]string, error) {
	if err := p.inventory.RefreshAll(ctx); err != nil {
		return nil, fmt.Errorf("polling for remaining objects of template %s: %w", desired.Name, err)
	}
	if remains := p.Remaining(desired); len(remains) > 0 {
		return remains, nil
	}
	view := p.inventory.View()
	hosts := slices.DeleteFunc(view.Hosts(), func(host inventory.HostState) bool { return !view.Snapshots[host.Region].IsOnline(host.Name) })
	remains, errs := make([]string, len(hosts)), make([]error, len(hosts))
	var group errgroup.Group
	group.SetLimit(cleanupParallelism)
	for n, host := range hosts {
		group.Go(func() error {
			name := p.displayName(host.Region, host.Name)
			r := &hostReconciler{Provider: p, HostKey: HostKey{UID: desired.UID, Region: host.Region, Host: host.Name}, desired: desired, usage: usage}
			text, err := r.cleanup(ctx)
			if err != nil {
				errs[n] = fmt.Errorf("%s: %w", name, err)
			} else if text != "" {
				remains[n] = name + ": " + text
			}
			return nil
		})
	}
	_ = group.Wait() // no call returns an error
	if err := joinErrors(errs...); err != nil {
		return nil, err
	}
	remains = slices.DeleteFunc(remains, func(s string) bool { return s == "" })
	if len(remains) == 0 {
		p.reportAbandoned(desired)
	}
	return remains, nil
}

// cleanup checks the Host. It returns what is still to be deleted there, or "".
func (r *hostReconciler) cleanup(ctx context.Context) (remains string, err error) {
	if r.client, err = r.Provider.client(r.Region); err != nil {
		return "", err
	}
	// Creations are listed before the VMs: a VM whose creation ends in between is in the
	// new view.
	if creating, err := r.isCreating(ctx); creating || err != nil {
		return "a VM creation in progress may be this template", explain(err, Location{Host: r.Host}, "listing tasks", "")
	}
	if err := r.inventory.Refresh(ctx, r.Region); err != nil {
		return "", err
	}
	obs, err := r.observe(ctx)
	if err != nil {
		return "", err
	}
	for _, existing := range slices.Concat(obs.ready, obs.unfinished) {
		return fmt.Sprintf("VM %d", existing.VMID), nil
	}
	if canceled, err := r.cancelRunningDownload(ctx); canceled || err != nil {
		return "the image download is still in progress", err
	}
	left, err := r.sweep(ctx, obs)
	switch {
	case errors.Is(err, errStillRunning):
		return "the deletion of images is still in progress", nil
	case left > 0 && err == nil:
		return fmt.Sprintf("unused images are deleted after %s", r.settings.GracePeriod), nil
	}
	return "", err
}

// cancelRunningDownload cancels a download of the image that an earlier run started, unless another ProxmoxTemplate
// uses the image, and reports whether there was one.
func (r *hostReconciler) cancelRunningDownload(ctx context.Context) (canceled bool, err error) {
	image, err := NewImage(r.desired.Spec.SourceImage, r.kubeCluster)
	if err != nil || image.volume != "" {
		return false, nil //nolint:nilerr // without an image there is no download
	}
	task, err := r.runningDownload(ctx, []string{r.Host}, image)
	if err != nil {
		return false, err
	}
	if shared, err := r.isImageShared(ctx, image); shared || task == "" || err != nil {
		return false, err
	}
	if err := r.client.CancelTask(ctx, task); err != nil && !errors.Is(err, proxmox.ErrNotFound) {
		return false, err
	}
	return true, nil
}

// isImageShared reports whether another ProxmoxTemplate uses the image.
func (r *hostReconciler) isImageShared(ctx context.Context, image Image) (bool, error) {
	usage, err := r.usage(ctx)
	return slices.ContainsFunc(usage.Desired, func(other Desired) bool {
		otherImage, err := NewImage(other.Spec.SourceImage, r.kubeCluster)
		return err == nil && !other.Deleted && other.UID != r.desired.UID && otherImage.Key == image.Key
	}), err
}
