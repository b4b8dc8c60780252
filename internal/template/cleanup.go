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

// clearParallel bounds how many Hosts are asked at once.
const clearParallel = 8

// Cleared asks every Host whether something of a deleted ProxmoxTemplate is still on
// its way there, which no view shows, and removes its images. What it answers is
// still to go.
func (p *Provider) Cleanup(ctx context.Context, w Desired, around Usage) ([]string, error) {
	if err := p.Inventory.RefreshAll(ctx); err != nil {
		return nil, fmt.Errorf("looking for what is left of template %s, %w", w.Name, err)
	}
	if remains := p.Remaining(w); len(remains) > 0 {
		return remains, nil
	}
	p.memory.sweepSoon()
	view := p.Inventory.View()
	var spots []HostKey
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		for _, host := range slices.Sorted(maps.Keys(view.Snapshots[region].Hosts)) {
			if view.Snapshots[region].Hosts[host].Online {
				spots = append(spots, HostKey{UID: w.UID, Region: region, Host: host})
			}
		}
	}
	remains := make([]string, len(spots))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clearParallel)
	for n, spot := range spots {
		group.Go(func() error {
			var err error
			remains[n], err = p.clear(ctx, w, spot, around)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(remains, func(s string) bool { return s == "" }), nil
}

// clear looks at one Host.
func (p *Provider) clear(ctx context.Context, w Desired, spot HostKey, around Usage) (string, error) {
	client, err := p.client(spot.Region)
	if err != nil {
		return "", err
	}
	t := &tending{Provider: p, wish: w, region: spot.Region, host: spot.Host, client: client, around: around, spot: spot}
	h, err := t.look(ctx, true)
	if err != nil {
		return "", err
	}
	name := p.name(spot.Region, spot.Host)
	if len(h.made) > 0 {
		return fmt.Sprintf("%s: VM %d", name, h.made[0].VMID), nil
	}
	if busy, err := t.creating(ctx); busy || err != nil {
		return name + ": a VM that is being created may be this template", err
	}
	if image, err := ImageOf(w.Spec.SourceImage, p.KubeCluster); err == nil {
		task, err := t.downloading(ctx, []string{spot.Host}, image)
		if err != nil {
			return "", err
		}
		if task != "" && !t.sharedImage(image) {
			err := p.Clients[spot.Region].CancelTask(ctx, task)
			if errors.Is(err, proxmox.ErrNotFound) {
				err = nil
			}
			return name + ": its image is still being downloaded", err
		}
	}
	return "", t.sweep(ctx, h)
}

// sharedImage tells whether another ProxmoxTemplate asks for the image too.
func (t *tending) sharedImage(image Image) bool {
	return slices.ContainsFunc(t.around.Desired, func(other Desired) bool {
		theirs, err := ImageOf(other.Spec.SourceImage, t.KubeCluster)
		return err == nil && !other.Deleted && other.UID != t.wish.UID && theirs.Key == image.Key
	})
}
