// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance is the life of a VM: launched once, found always, deleted
// safely, whatever happens in between.
//
// A launch is a sequence that can be taken up at any point, by any process. The
// intent is written on the Claim before the first call to Proxmox; each step
// then looks at what is true and does what is missing. Nothing is stopped,
// changed or destroyed before its identity was read back and matched.
package instance
