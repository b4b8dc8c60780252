// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

import (
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/storageselection"
)

// onRetainedDisks returns the privileges to attach disks that no VM owns.
func (vm VM) onRetainedDisks() []Required {
	if !slices.ContainsFunc(vm.Class.Spec.Disks, func(d v1alpha1.Disk) bool { return d.Retain }) {
		return nil
	}
	return on("/vms/"+strconv.Itoa(proxmox.RetainedVMID), "VM.Config.Disk")
}

// selectedStorages returns the paths below /storage of the storages that the disks of the
// class may use: those of a list or a selector as far as they are visible on the Host,
// else all that are listed.
func (vm VM) selectedStorages() []string {
	var paths []string
	for _, selection := range vm.Class.StorageSelections() {
		names, err := storageselection.Find(vm.Snapshot, vm.Host, selection)
		if err != nil && selection.Storage != "" {
			names = []string{selection.Storage}
		} else if err != nil {
			names = selection.Storages
		}
		for _, name := range names {
			paths = append(paths, "/"+name)
		}
	}
	return paths
}
