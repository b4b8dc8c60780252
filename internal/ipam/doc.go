// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipam picks addresses for VMs from subnets. It is pure and keeps no state: a Pool
// contains the addresses that may be assigned, and the caller reports which are taken.
//
// # Addresses that are never assigned
//
//   - the network and broadcast address of an IPv4 subnet, and the all-zero address of an
//     IPv6 subnet, which is the anycast address of all its routers (RFC 4291);
//   - the gateway;
//   - addresses that the pool excludes, or that are outside of its ranges.
//
// Both addresses of an IPv4 /31 (RFC 3021) and of an IPv6 /127 (RFC 6164) are hosts, and a
// /32 or /128 is one host.
//
// # Choice of the address
//
// The VM's key determines the first candidate; the following addresses are next. So a
// retry for the same VM picks the same address, concurrent launches rarely compete for
// one, and a released address is not the next one to be assigned: neighbors may still cache
// its previous MAC.
package ipam
