// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// build makes the Template from where an earlier run left off: nothing, an image, a
// VM, or a Template that the view does not show yet.
func (t *tending) build(ctx context.Context, h here) (time.Duration, error) {
	for _, found := range h.made {
		if !h.place.has(t.wish, found) {
			continue
		}
		if found.Config.IsTemplate() {
			t.memory.doing(t.spot, "made, and soon to be seen")
			return recheck, nil
		}
		return t.finish(ctx, h.place, found)
	}
	busy, err := t.creating(ctx)
	if err != nil {
		return 0, explain(err, h.place, "looking for tasks", "")
	}
	if busy {
		t.memory.doing(t.spot, "a VM is being created on the host, which may be this template")
		return recheck, nil
	}
	if h.leftover != 0 {
		t.note(stranded(h.leftover))
	}
	volume, err := t.ensureImage(ctx, h.place)
	if err != nil {
		return 0, err
	}
	found, err := t.create(ctx, h.place, volume)
	if err != nil {
		return 0, err
	}
	return t.finish(ctx, h.place, found)
}

// stranded says what to do about a VM that a dead create left locked.
func stranded(vmid int) string {
	return fmt.Sprintf("VM %d is locked (create) by a task that no longer runs, as a crash leaves it; after making sure that nobody needs it, run there as root: qm unlock %d && qm destroy %d",
		vmid, vmid, vmid)
}

func (t *tending) note(text string) {
	t.memory.update(t.spot, func(s *state) { s.note = text })
}

// creating tells whether a VM with one of our VMIDs is being created on the Host. It
// says nothing about itself before it is complete, and may be ours.
func (t *tending) creating(ctx context.Context) (bool, error) {
	tasks, err := t.client.RunningTasks(ctx, t.host, "qmcreate")
	if err != nil {
		return false, err
	}
	within := t.Settings.VMIDs
	return slices.ContainsFunc(tasks, func(task proxmox.TaskStatus) bool {
		vmid, err := strconv.Atoi(task.ID)
		return err == nil && vmid >= within.From && vmid <= within.To && !t.vmids.others(vmid, t.spot)
	}), nil
}

// vmidTries bounds how often a VMID may turn out to be taken.
const vmidTries = 20

// create makes a VM with the image as its disk.
func (t *tending) create(ctx context.Context, place Location, volume string) (Existing, error) {
	for range vmidTries {
		vmid, err := t.vmids.pick(t.Inventory.View(), t.spot)
		if err != nil {
			return Existing{}, err
		}
		mark := t.mark(vmid)
		if len(t.wish.Spec.Tags) == 0 {
			mark.Settings = t.wish.Settings // nothing is left to write
		}
		t.memory.doing(t.spot, fmt.Sprintf("importing the image to storage %s", place.Storage))
		task, err := t.client.CreateVM(ctx, proxmox.CreateRequest{
			Host: t.host, VMID: vmid, Pool: t.wish.Spec.ResourcePool, Options: creation(t.wish, place, volume, mark),
		})
		if errors.Is(err, proxmox.ErrExists) {
			continue // somebody was quicker
		}
		if err == nil {
			err = t.wait(ctx, t.client, task, t.key(place.Storage))
		}
		if err != nil {
			return Existing{}, explain(err, place, fmt.Sprintf("creating VM %d", vmid), place.Storage)
		}
		config, err := t.client.VMConfig(ctx, t.host, vmid)
		if err != nil {
			return Existing{}, explain(err, place, fmt.Sprintf("reading VM %d", vmid), "")
		}
		return Existing{Region: t.region, Host: t.host, VMID: vmid, Mark: mark, Config: config}, nil
	}
	return Existing{}, fmt.Errorf("creating the VM: %d VMIDs in a row were taken by others", vmidTries)
}

func (t *tending) mark(vmid int) ownership.Mark {
	return ownership.Mark{
		VMID: vmid, KubeCluster: t.KubeCluster, Name: t.wish.Name, TemplateUID: t.wish.UID, Generation: t.wish.Hash,
		Hash: t.wish.Hash, HashVersion: v1alpha1.HashVersion, Pool: t.wish.Spec.ResourcePool,
	}
}

// finish turns a VM into the Template that was asked for.
func (t *tending) finish(ctx context.Context, place Location, found Existing) (time.Duration, error) {
	if lock := found.Config.Lock(); lock != "" {
		t.memory.doing(t.spot, fmt.Sprintf("VM %d is locked (%s)", found.VMID, lock))
		return recheck, nil
	}
	if err := t.settle(ctx, place, found); err != nil {
		return 0, err
	}
	t.memory.doing(t.spot, "converting to a template")
	task, err := t.client.ConvertToTemplate(ctx, t.host, found.VMID)
	if err == nil {
		err = t.wait(ctx, t.client, task, t.key(place.Storage))
	}
	if err != nil {
		// An earlier run's conversion may have been at work.
		if config, readErr := t.client.VMConfig(ctx, t.host, found.VMID); readErr != nil || !config.IsTemplate() {
			return 0, explain(err, place, fmt.Sprintf("converting VM %d to a template", found.VMID), place.Storage)
		}
	}
	t.memory.sweepSoon()
	return recheck, t.Inventory.Refresh(ctx, t.region)
}

// settle writes what follows the spec in place, once the VM is known to be ours.
func (t *tending) settle(ctx context.Context, place Location, found Existing) error {
	if t.written(t.wish, found) {
		return nil
	}
	config, err := t.client.VMConfig(ctx, t.host, found.VMID)
	if err != nil {
		return explain(err, place, fmt.Sprintf("reading template %d", found.VMID), "")
	}
	mark, ok := ownership.Read(config.Description())
	if !ok || mark.Newer() || mark.TemplateUID != found.Mark.TemplateUID || mark.VMID != found.VMID || mark.KubeCluster != t.KubeCluster {
		return nil // it was taken from us since the view was made, which will show that
	}
	if mark.Settings != t.wish.Settings || mark.Hash != t.wish.Hash {
		if err := t.write(ctx, place, found, config, mark); err != nil {
			return explain(err, place, fmt.Sprintf("writing the settings of template %d", found.VMID), "")
		}
	}
	t.memory.wrote(found.Zone(), t.wish.Settings+"/"+t.wish.Hash)
	return nil
}

func (t *tending) write(ctx context.Context, place Location, found Existing, config proxmox.VMConfig, mark ownership.Mark) error {
	if pool := t.wish.Spec.ResourcePool; mark.Pool != pool {
		if err := t.client.MoveToPool(ctx, found.VMID, mark.Pool, pool); err != nil {
			return err
		}
	}
	// The generation stays: it names what the disk was made of.
	generation := mark.Generation
	mark = t.mark(found.VMID)
	mark.Settings, mark.Generation = t.wish.Settings, generation
	return t.client.UpdateVM(ctx, t.host, found.VMID, change(t.wish, place, config, mark))
}
