// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// tidy removes what the Host has of this ProxmoxTemplate and nobody needs: Templates
// of older generations, doubles, VMs that did not become Templates, and images.
func (t *tending) tidy(ctx context.Context) (time.Duration, error) {
	// Rows may not show yet that a VM is locked. VMs that are no templates are rare among
	// these VMIDs.
	h, err := t.look(ctx, true)
	if err != nil {
		return 0, err
	}
	var again time.Duration
	var notes []string
	for _, found := range t.obsolete(h) {
		later, err := t.retire(ctx, found, !contains(h.ready, found))
		if kept, ok := errors.AsType[*keptError](err); ok {
			notes = append(notes, kept.Error())
			err = nil
		}
		if err != nil {
			return 0, explain(err, h.place, fmt.Sprintf("removing %s", found), storageOf(found))
		}
		again = soonest(again, later)
	}
	if h.leftover != 0 {
		busy, err := t.creating(ctx)
		if err != nil {
			return 0, explain(err, h.place, "looking for tasks", "")
		}
		if !busy {
			notes = append(notes, stranded(h.leftover))
		}
	}
	t.note(strings.Join(notes, "; "))
	if err := t.sweep(ctx, h); err != nil {
		return 0, err
	}
	return again, nil
}

func contains(all []Existing, f Existing) bool {
	return slices.ContainsFunc(all, func(o Existing) bool { return o.VMID == f.VMID })
}

// obsolete is what the Host has of ours beside the one Template that it should have.
func (t *tending) obsolete(h here) []Existing {
	keep := 0
	if h.wants {
		for _, found := range append(slices.Clone(h.ready), h.made...) {
			if h.place.has(t.wish, found) && (keep == 0 || t.around.InUse(found.Region, found.VMID) != "" && t.around.InUse(found.Region, keep) == "") {
				keep = found.VMID
			}
		}
	}
	var out []Existing
	for _, found := range append(slices.Clone(h.ready), h.made...) {
		if found.VMID != keep {
			out = append(out, found)
		}
	}
	return out
}

// keptError says why something that should go is still there.
type keptError struct{ text string }

func (e *keptError) Error() string { return e.text }

// retire removes a Template once nobody has needed it for a while. A VM that never
// became one goes at once.
func (t *tending) retire(ctx context.Context, found Existing, unfinished bool) (time.Duration, error) {
	if !unfinished {
		now := t.Clock.Now()
		why := t.around.InUse(found.Region, found.VMID)
		since, idle := t.memory.unneeded(found.Zone(), why != "", now)
		if !idle {
			return 0, &keptError{fmt.Sprintf("template %d of an older generation is kept: %s", found.VMID, why)}
		}
		if left := t.Settings.Grace - now.Sub(since); left > 0 && !t.wish.Deleted {
			return left, nil
		}
	}
	return 0, t.destroy(ctx, found)
}

// destroy removes a VM or Template, once it is known to be ours.
func (t *tending) destroy(ctx context.Context, found Existing) error {
	config, err := t.client.VMConfig(ctx, t.host, found.VMID)
	if errors.Is(err, proxmox.ErrNotFound) {
		t.Inventory.Ledger().ObserveDeleted(t.region, found.VMID)
		return nil
	}
	if err != nil {
		return err
	}
	mark, ok := ownership.Read(config.Description())
	switch {
	case config.Lock() != "":
		return &keptError{fmt.Sprintf("template %d is locked (%s) and is removed when the lock is gone", found.VMID, config.Lock())}
	case !ok || mark.Newer() || mark.VMID != found.VMID || mark.TemplateUID != found.Mark.TemplateUID || mark.KubeCluster != t.KubeCluster:
		return nil // it is not ours any more, and the view will show that
	case config.Protected():
		return &keptError{fmt.Sprintf("template %d is protected; to let it go, run: qm set %d --protection 0", found.VMID, found.VMID)}
	}
	t.memory.doing(t.spot, fmt.Sprintf("removing template %d", found.VMID))
	task, err := t.client.DestroyVM(ctx, t.host, found.VMID)
	if err == nil {
		err = t.wait(ctx, t.client, task, t.key(storageOf(found)))
	}
	switch {
	case errors.Is(err, proxmox.ErrNotFound):
	case err != nil && strings.Contains(err.Error(), "still in use by linked clone"):
		return &keptError{fmt.Sprintf("template %d is kept: linked clones on storage %s still use its disk, see: qm list; remove them, or take our mark out of the template's notes to keep it",
			found.VMID, storageOf(found))}
	case err != nil:
		return err
	}
	log.FromContext(ctx).Info("removed a template", "vmid", found.VMID, "host", t.host, "generation", found.Mark.Generation)
	t.Inventory.Ledger().ObserveDeleted(t.region, found.VMID)
	t.memory.sweepSoon()
	return nil
}

// sweep removes images that we downloaded and no ProxmoxTemplate asks for any more.
func (t *tending) sweep(ctx context.Context, h here) error {
	now := t.Clock.Now()
	if !t.memory.sweepDue(t.region, t.host, now, func() bool { return false }) {
		return nil
	}
	snapshot := h.view.Snapshots[t.region]
	wanted := t.wanted(h.view)
	for key, row := range snapshot.Storages {
		if key.Host != t.host || !row.Available || !slices.Contains(row.Content, "import") {
			continue
		}
		volumes, err := t.client.Volumes(ctx, t.host, key.Storage, "import")
		if _, hidden := errors.AsType[*proxmox.ForbiddenError](err); hidden {
			continue // where we may not look, we have downloaded nothing
		}
		if err != nil {
			return explain(err, h.place, fmt.Sprintf("listing the images on storage %s", key.Storage), key.Storage)
		}
		for _, volume := range volumes {
			image, ours := ownImage(volume.ID, t.KubeCluster)
			if !ours || wanted[imageAt{t.host, key.Storage, image}] {
				continue
			}
			if err := t.deleteImage(ctx, volume.ID, key.Storage); err != nil {
				return explain(err, h.place, fmt.Sprintf("deleting image %s", volume.ID), key.Storage)
			}
		}
	}
	t.memory.sweptAt(t.region, t.host, now)
	return nil
}

func (t *tending) deleteImage(ctx context.Context, volume, storage string) error {
	task, err := t.client.DeleteVolume(ctx, t.host, volume)
	if err == nil {
		err = t.wait(ctx, t.client, task, t.key(storage))
	}
	if err == nil {
		log.FromContext(ctx).Info("deleted an image that no template is made from any more", "volume", volume, "host", t.host)
	}
	return err
}

// imageAt is an image on a Host's storage.
type imageAt struct{ host, storage, key string }

// wanted are the images that ProxmoxTemplates ask for, on all Hosts that see them.
func (t *tending) wanted(view inventory.View) map[imageAt]bool {
	out := map[imageAt]bool{}
	snapshot := view.Snapshots[t.region]
	for _, w := range t.around.Desired {
		image, err := ImageOf(w.Spec.SourceImage, t.KubeCluster)
		if err != nil || !w.wants(t.region) {
			continue
		}
		for host := range snapshot.Hosts {
			place := placeOn(snapshot, host, w.Spec.StorageIDs)
			if place.Images == "" || place.Storage == "" {
				continue
			}
			out[imageAt{host, place.Images, image.Key}] = true
			if !snapshot.Storages[inventory.StorageKey{Host: host, Storage: place.Images}].Shared {
				continue
			}
			for other := range snapshot.Hosts {
				out[imageAt{other, place.Images, image.Key}] = true
			}
		}
	}
	return out
}
