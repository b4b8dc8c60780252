// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bootdata creates the boot data of VMs. Render executes the user's boot data
// templates into user-data, meta-data, network-config and vendor-data, Files.ISO packs
// them into a "cidata" image, and Tokens issues the short-lived tokens that new Nodes
// join with.
//
// Render is a pure function of templates and data. Nothing is written to disk, and no
// error contains a value: boot data contains join tokens and the secrets of valuesRef.
// Errors contain the key of the Secret, the line and the missing name.
//
// The package depends on neither Karpenter nor the Proxmox API.
package bootdata
