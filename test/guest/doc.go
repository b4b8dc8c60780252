// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest tests Nodes that are real Linux VMs: a control plane, the controller binary, and a simulated Proxmox
// cluster that runs each VM under QEMU. The tests check from inside the guest what the product promises about it.
//
// make e2e-guest builds images and binaries and sets their paths. CASE selects one case. The results are in
// docs/real-guests.md.
package guest
