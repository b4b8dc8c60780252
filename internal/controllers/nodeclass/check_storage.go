// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/storageselection"
)

// checkStorage checks whether the Host has storages for the disk, the boot drive and the
// snippets of the class, and whether clones on them are fast enough.
func checkStorage(z zone) *problem {
	for _, selection := range z.class.StorageSelections() {
		_, err := storageselection.Find(z.snapshot, z.host, selection)
		if _, invalid := errors.AsType[*storageselection.ExpressionError](err); invalid {
			return &problem{message: err.Error()}
		}
		if err != nil {
			return z.hostProblem("%v", err)
		}
	}
	if z.class.Spec.MetadataOptions.IsRendered() {
		if _, err := placement.ISOStorage(z.snapshot, z.host, "spec.metadataOptions.storage", z.class.Spec.MetadataOptions.Storage); err != nil {
			return z.hostProblem("%v", err)
		}
	}
	if p := checkCloudInit(z); p != nil {
		return p
	}
	if z.template != nil {
		if reason := cloneProblem(z); reason != "" {
			return z.hostProblem("%s", reason)
		}
	}
	if z.cloneTooSlow != "" {
		return z.hostProblem("%s", z.cloneTooSlow)
	}
	return nil
}

// cloneProblem returns why a template on another Host cannot be cloned to this one,
// although its storage is shared; empty if it can. A launch wakes the Host of its template.
func cloneProblem(z zone) string {
	guest, ok := z.snapshot.Guests[z.template.VMID]
	if !ok || guest.Host == z.host {
		return ""
	}
	if z.templateHostOffline {
		return fmt.Sprintf("template %d is on host %s, which is offline", guest.VMID, guest.Host)
	}
	storages, _ := storageselection.Find(z.snapshot, z.host, z.class.Spec.BootDevice.StorageSelection()) // checked before
	isShared := func(storage string) bool {
		return z.snapshot.Storages[observed.StorageKey{Host: z.host, Storage: storage}].Shared
	}
	if storage := strings.Join(storages, ", "); storage != "" && !slices.ContainsFunc(storages, isShared) {
		return fmt.Sprintf("template %d is on host %s, and Proxmox clones to another host on shared storage only: spec.bootDevice.storage %q is local; leave it empty, or have a template on this host",
			guest.VMID, guest.Host, storage)
	}
	return ""
}
