// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance holds what the operations on VMs share: how a VM is identified and
// found (Identity, VM, Provider), what was planned for it (Intent), and the state of a
// Claim. The operations are in subpackages, in the order of a VM's life:
//
//   - plan: Planner chooses size, Host, VMID and addresses, and writes the Intent.
//   - launch: Launcher clones, configures and starts the VM.
//   - deletion: Deleter verifies ownership, stops and destroys the VM, and deletes its
//     boot drive and join token.
//   - boot: Source renders boot data.
//   - operations: New wires them.
//
// Small operations on a running VM are here: Power, Updater (in-place changes) and
// Adopter.
//
// A launch can be resumed at any point by any process: the Intent is written to the
// Claim before the first request to Proxmox, and each step reads what exists and does
// what is missing. No VM is stopped, changed or destroyed before its identity was read
// and verified. Templates have a second ownership check, in internal/template.
//
// # State of a Claim
//
// What must survive a restart is what core stored with the providerID, and the VM itself; the rest is a
// cache or a lock of this process. Deps.IntentOf reads all of it.
//
//   - Core's record: VMID, Host, type and capacity, and what the VM holds (annotation holds).
//   - The VM: its configuration, and its ownership mark with the Template and what was written to it.
//   - Ledger (inventory.Inventory): the Reservation of capacity, VMID and addresses
//     until a Snapshot shows the VM. After a restart it is restored from the Claims.
//     Callbacks that run under its lock have the type plan.decideUnderLock; they must not
//     block.
//   - LaunchTracker: the plan, and what this process did and saw. It saves requests; a process
//     without an entry reads Proxmox instead. A launch has ended if the Node joined.
//   - Guard: serializes launch, update and delete of a Claim; delete wins.
//
// The launch controller also keeps the Claims that it deleted until its cache shows
// the deletion. Deleter and Planner.Release remove reservation and tracker entry.
package instance
