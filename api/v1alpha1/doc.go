// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 contains the custom resources of the Proxmox VE provider for Karpenter: ProxmoxNodeClass defines how the
// VMs of a NodePool are created, ProxmoxTemplate and ProxmoxUnmanagedTemplate define what they are cloned from.
//
// Other programs may import the package. Besides the types it contains only what every reader of these objects needs: label
// and annotation keys, provider IDs, zone strings and the hashes that detect drift.
//
// Group, kinds and fields are those of the existing karpenter-provider-proxmox, so its manifests keep working. Comments mark
// the fields that this provider adds.
//
// +kubebuilder:object:generate=true
// +groupName=karpenter.proxmox.sinextra.dev
package v1alpha1
