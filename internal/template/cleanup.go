// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

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
	keys := p.onlineHosts(desired)
	// Creations are listed before the VMs: a VM whose creation ends in between is in the
	// new view.
	remains, err := p.forEachHost(ctx, keys, p.creationOn)
	if err != nil || len(remains) > 0 {
		return remains, err
	}
	if err := p.inventory.RefreshAll(ctx); err != nil {
		return nil, fmt.Errorf("polling for remaining objects of template %s: %w", desired.Name, err)
	}
	if remains := p.Remaining(desired); len(remains) > 0 {
		return remains, nil
	}
	remains, err = p.forEachHost(ctx, keys, func(ctx context.Context, key HostKey) (string, error) {
		return p.cleanupHost(ctx, desired, key, usage)
	})
	if err == nil && len(remains) == 0 {
		p.reportAbandoned(desired)
	}
	return remains, err
}

// onlineHosts returns the keys of all Hosts that are online.
func (p *Provider) onlineHosts(desired Desired) (keys []HostKey) {
	view := p.inventory.View()
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		for _, host := range slices.Sorted(maps.Keys(view.Snapshots[region].Hosts)) {
			if view.Snapshots[region].Hosts[host].Online {
				keys = append(keys, HostKey{UID: desired.UID, Region: region, Host: host})
			}
		}
	}
	return keys
}

// forEachHost calls a function for each Host concurrently. It returns its results that are not
// empty, or the errors of all Hosts.
func (p *Provider) forEachHost(ctx context.Context, keys []HostKey, check func(context.Context, HostKey) (string, error)) ([]string, error) {
	remains, errs := make([]string, len(keys)), make([]error, len(keys))
	var group errgroup.Group
	group.SetLimit(cleanupParallelism)
	for n, key := range keys {
		group.Go(func() error {
			var err error
			if remains[n], err = check(ctx, key); err != nil {
				errs[n] = fmt.Errorf("%s: %w", p.displayName(key.Region, key.Host), err)
			}
			return nil
		})
	}
	_ = group.Wait() // no call returns an error
	if err := joinErrors(errs...); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(remains, func(s string) bool { return s == "" }), nil
}

// creationOn describes a VM creation in progress on the Host that may be of this
// template, or returns "".
func (p *Provider) creationOn(ctx context.Context, key HostKey) (string, error) {
	client, err := p.client(key.Region)
	if err != nil {
		return "", err
	}
	busy, err := (&hostReconciler{Provider: p, HostKey: key, client: client}).isCreating(ctx)
	if !busy || err != nil {
		return "", explain(err, Location{Host: key.Host}, "listing tasks", "")
	}
	return p.displayName(key.Region, key.Host) + ": a VM creation in progress may be this template", nil
}

// cleanupHost checks one Host. It returns what is still to be deleted there, or "".
func (p *Provider) cleanupHost(ctx context.Context, desired Desired, key HostKey, usage ListUsage) (string, error) {
	client, err := p.client(key.Region)
	if err != nil {
		return "", err
	}
	r := &hostReconciler{Provider: p, HostKey: key, desired: desired, client: client, usage: usage}
	obs, err := r.observe(ctx)
	if err != nil {
		return "", err
	}
	name := p.displayName(key.Region, key.Host)
	if len(obs.unfinished) > 0 {
		return fmt.Sprintf("%s: VM %d", name, obs.unfinished[0].VMID), nil
	}
	if image, err := NewImage(desired.Spec.SourceImage, p.kubeCluster); err == nil && image.volume == "" {
		task, err := r.runningDownload(ctx, []string{key.Host}, image)
		if err != nil {
			return "", err
		}
		shared, err := r.isImageShared(ctx, image)
		if err != nil {
			return "", err
		}
		if task != "" && !shared {
			err := p.clients[key.Region].CancelTask(ctx, task)
			if errors.Is(err, proxmox.ErrNotFound) {
				err = nil
			}
			return name + ": the image download is still in progress", err
		}
	}
	left, err := r.sweep(ctx, obs)
	if errors.Is(err, errStillRunning) {
		return name + ": the deletion of images is still in progress", nil
	}
	if left > 0 || err != nil {
		return fmt.Sprintf("%s: unused images are deleted after %s", name, p.settings.GracePeriod), err
	}
	return "", nil
}

// isImageShared reports whether another ProxmoxTemplate uses the image.
func (r *hostReconciler) isImageShared(ctx context.Context, image Image) (bool, error) {
	usage, err := r.usage(ctx)
	return slices.ContainsFunc(usage.Desired, func(other Desired) bool {
		otherImage, err := NewImage(other.Spec.SourceImage, r.kubeCluster)
		return err == nil && !other.Deleted && other.UID != r.desired.UID && otherImage.Key == image.Key
	}), err
}
