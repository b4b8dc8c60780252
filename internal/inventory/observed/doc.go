// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package observed contains what polls found in a Proxmox cluster: Snapshots with their Hosts, guests
// and storages. All of it is immutable.
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
package observed
