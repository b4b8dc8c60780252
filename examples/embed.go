// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package examples holds the example manifests, so that tests and the demo use
// exactly what users read.
package examples

import "embed"

// Files are the manifests, one directory per subject, and the snippet that one of them is about.
//
//go:embed */*.yaml proxmox-cloud-init/worker.cfg
var Files embed.FS

// Recipes are the directories with one way each to have Nodes join.
func Recipes() []string {
	return []string{"kubeadm", "k3s", "rke2", "talos", "flatcar", "fedora-coreos"}
}
