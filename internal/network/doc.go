// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package network decides how the interfaces of a VM get their addresses: what the
// NodeClass says about an interface and a family counts, else what the Template's
// ipconfigN says, else DHCP. A subnet is a pool; each VM gets an own address of it.
//
// Like placement it is pure: addresses are picked on a View, under the lock of the
// ledger, and stand in the Claim's intent before anything is done with them. Nothing
// here remembers them.
package network
