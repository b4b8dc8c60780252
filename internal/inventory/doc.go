// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory knows what every Cluster has and what is promised: the last
// good Snapshot of each Cluster and, on top, the ledger of Reservations. It is
// the only shared mutable state of the provider. Readers take a View, which never
// changes, and do no I/O.
//
// # How it is read
//
// Each Cluster is polled on its own, so a dead one delays nobody: one call of
// /cluster/resources per interval. The configurations of VMs and templates are
// read at first sight, when the row changed, and by a sweep of one every 150
// seconds; of other people's VMs they tell the PCI devices and CPUs that they hold.
// The PCI mappings are read every five minutes and, before 9.2, the Hosts in
// maintenance every minute. What else a Cluster has and lets us do (privileges,
// bridges, security groups, allowed tags: the Facts) is read at first contact, then
// one call every three minutes in turn, and sooner when a decision that rests on it
// is in doubt. A failed poll keeps the last good Snapshot and is recorded
// beside it: partial data is never a shorter list. The first Snapshot waits for
// the configurations, so that our VMs can be told from others in it.
//
// # What a guest takes from its Host
//
// What it is configured for, not what it uses at the moment:
//
//   - a guest that runs (or is paused: its memory is held) counts its CPUs and memory;
//   - a stopped guest in our VMID range counts too: it is about to start, or will
//     be started again when its Host comes back;
//   - a stopped guest of somebody else does not count, nor does any template;
//   - containers count like VMs, except that a container without a CPU limit counts
//     no CPUs: Proxmox shows all of the Host's for it, which nobody promised;
//   - a row without figures (for ten seconds after a guest was made, and while its
//     Host is away) counts what the guest counted when it was last seen with
//     figures, else what its configuration says where we have read it.
//
// # What a Reservation takes
//
// A Reservation counts until the Snapshot shows its VM with the figures that were
// promised, or running. A fresh clone shows its template's figures at first, so
// until then the larger of both counts, never their sum. Afterwards only the VM
// counts, and the Reservation stays on record until it is released: it keeps the
// VMID taken and tells which NodePool the VM belongs to.
//
// # What a Host gives
//
// Allocatable = (CPUs - reserved CPUs) x CPU ratio, and the same for memory; see
// HostSettings for the settings and their defaults.
package inventory
