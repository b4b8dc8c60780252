// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipam picks addresses for VMs out of subnets. It is pure: a Pool says which
// addresses may be given, the caller says which of them are taken, and nothing is
// remembered. What was given stands in the caller's records, so that a restart loses
// nothing.
//
// # What is never given
//
//   - the network and the broadcast address of an IPv4 subnet, and the all-zero
//     address of an IPv6 subnet, which every router on it answers to (RFC 4291);
//   - the gateway;
//   - what the pool excludes, or leaves out of its ranges.
//
// The two addresses of an IPv4 /31 (RFC 3021) and of an IPv6 /127 (RFC 6164) are both
// hosts, and a /32 or /128 is one host.
//
// # Which address is picked
//
// The first try follows from the key, which belongs to the VM, then come the next
// ones. So the same VM asks for the same address again, VMs that are planned at the
// same time rarely meet, and an address that came back is not the next to be given:
// neighbours may remember the MAC that it had.
package ipam
