// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the custom resources of the Proxmox VE provider for Karpenter: ProxmoxNodeClass says how the VMs of
// a NodePool are made, ProxmoxTemplate and ProxmoxUnmanagedTemplate say what they are cloned from.
//
// The package is meant to be imported by other programs. Beside the types it holds only what every reader of these objects
// needs in the same way: label and annotation keys, provider IDs, zone strings and the hashes that decide on drift.
//
// Group, kinds and fields are those of the existing karpenter-provider-proxmox, so that its manifests keep working. Fields that
// it does not know are marked as additions in their comments.
//
// +kubebuilder:object:generate=true
// +groupName=karpenter.proxmox.sinextra.dev
package v1alpha1
