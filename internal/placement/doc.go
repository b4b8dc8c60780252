// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package placement decides where a VM goes: which Host takes it, and under which
// VMID. It is made of pure functions over an inventory.View: no I/O, no clock, no
// locks, and the same input gives the same answer.
//
// There is one fit check, Fit. Offerings are available where it says yes, and
// Choose places only where it says yes: if the two ever disagreed, Karpenter would
// ask for what Create then refuses, again and again.
package placement
