// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory maintains the state of all Clusters: the last good Snapshot of each
// Cluster, and the Ledger of Reservations and deletions that a Snapshot may not show yet.
// It is the only shared mutable state of the provider. Readers get an immutable View from
// the Inventory and do no I/O.
//
// # Polling
//
// Each Cluster is polled independently, so an unreachable one does not delay the others:
// one call of /cluster/resources per interval. The configurations of VMs and templates are
// read when a guest is new, when its row changed, and by a background sweep of one every
// 150 seconds; those of other users' VMs contain the PCI devices and CPUs that they use.
// PCI mappings are read every five minutes and, before PVE 9.2, the Hosts in maintenance
// every minute. The Facts (privileges, bridges, topologies, security groups, allowed tags) are read at
// first contact, then one of them every few minutes, and earlier after Invalidate. All reads besides
// the resource list are kinds of Facts in one cache and one call budget; see kinds. A failed
// poll keeps the last good Snapshot and is recorded in View.Failures; partial data never
// becomes a shorter list. The first Snapshot waits for the configurations, because our VMs
// cannot be identified without them.
//
// # Allocation of a guest
//
// A guest is allocated what it is configured for, not what it currently uses:
//
//   - A running or paused guest counts its CPUs and memory.
//   - A stopped guest in our VMID range counts too: it is about to start, or will be
//     restarted when its Host is back online.
//   - Other stopped guests and templates do not count, nor does the stopped VM
//     node-capacity by which another provider's daemon describes its Host.
//   - A guest that ran when its Host lost its power or crashed counts for 15 minutes after the
//     start of the Host, also while it is stopped: Proxmox starts guests one after the other.
//   - Containers count like VMs. A container without a CPU limit counts no CPUs, because
//     Proxmox lists all CPUs of the Host for it.
//   - A row without resources (for ten seconds after a guest was created, and while its
//     Host is offline) counts the guest's last allocation, or its configured size if it
//     has none.
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
//
// # Allocatable capacity of a Host
//
// Allocatable = (CPUs - reserved CPUs) x CPU ratio, and the same for memory. HostSettings
// documents the settings and their defaults.
package inventory
