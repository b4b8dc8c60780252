// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples embeds the example manifests for tests and the demo.
package examples

import "embed"

// Files contains the manifests, one directory per subject, and the cloud-init snippet.
//
//go:embed */*.yaml proxmox-cloud-init/worker.cfg
var Files embed.FS

// Recipes returns the directories that contain a complete way to join Nodes.
func Recipes() []string {
	return []string{"kubeadm", "k3s", "rke2", "talos", "flatcar", "fedora-coreos"}
}
