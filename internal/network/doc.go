// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package network determines how the interfaces of a VM get their addresses. For each
// interface and address family it uses the NodeClass, else the template's ipconfigN, else
// DHCP. A subnet is an address pool; each VM gets its own address from it.
//
// Like placement it is pure. Addresses are picked from a View under the ledger's lock and
// recorded in the Claim's intent before they are used.
package network
