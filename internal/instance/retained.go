// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// RetainedVolumes returns the volumes of an intent's retained disks by the name of the
// disk; nil if there are none. The name of a volume is derived from the Kubernetes cluster,
// the machine and the disk, so each VM of the machine has the same volume, and a volume is
// never created twice. The VMID in it belongs to no VM, so Proxmox never deletes the volume
// with a VM.
func RetainedVolumes(in Intent, kubeCluster string, snapshot *observed.Snapshot) map[string]string {
	var out map[string]string
	for _, disk := range in.Disks {
		if !disk.Retain || in.Machine == "" {
			continue
		}
		// Neither machines nor disks have an underscore in their names.
		name := retainedPrefix(kubeCluster) + in.Machine + "_" + disk.Name
		if snapshot.Storages[observed.StorageKey{Host: in.Host, Storage: disk.Storage}].HasFiles() {
			name = fmt.Sprintf("%d/%s.raw", proxmox.RetainedVMID, name)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[disk.Name] = disk.Storage + ":" + name
	}
	return out
}

// retainedPrefix is the prefix of the names of retained disks.
func retainedPrefix(kubeCluster string) string {
	return fmt.Sprintf("vm-%d-%s_", proxmox.RetainedVMID, ShortClusterID(kubeCluster))
}
