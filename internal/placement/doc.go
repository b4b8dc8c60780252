// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package placement decides which Host a VM is created on, and under which VMID. It
// consists of pure functions over an inventory.View: no I/O, no clock, no locks, and the
// same input gives the same result.
//
// Fit is the only fit check. Offerings are available where Fit succeeds, and Choose
// places only where Fit succeeds. If the two disagreed, Karpenter would repeatedly
// request capacity that Create then refuses.
package placement
