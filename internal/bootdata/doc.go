// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bootdata makes what a VM reads at first boot: it renders the user's
// templates into user-data, meta-data, network-config and vendor-data, packs
// them into a "cidata" ISO image, and issues the short-lived tokens that new
// Nodes join with.
//
// Render is a pure function of templates and data. Nothing touches a disk and
// nothing prints a value: boot data holds join tokens and whatever secrets the
// user put into valuesRef, so errors name the Secret's key, the line and the
// missing name, never what a variable contained.
//
// The package knows nothing of Karpenter and nothing of Proxmox's API.
package bootdata
