// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory maintains the state of all Clusters: the last good Snapshot of each
// Cluster, and the Ledger of Reservations and deletions that a Snapshot may not show yet.
// It is the only shared mutable state of the provider. Readers get an immutable View from
// the Inventory and do no I/O.
//
// What a View consists of has packages of its own: poll reads the Clusters, observed contains what it
// found, and declared what administrators set.
//
// # Allocation of a Reservation
//
// A Reservation counts until the Snapshot shows its VM running or with the reserved size.
// A new clone initially has its template's size; until then the larger of both counts, not
// the sum. Afterwards only the VM counts. The Reservation remains until it is released: it
// keeps the VMID and addresses taken and records the VM's NodePool.
//
// # Failover
//
// Failover reports whether the guests of any one Host would fit on the others. It is computed
// from the allocations above, for each region and architecture.
package inventory
