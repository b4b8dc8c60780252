// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instancetype tells Karpenter what it may ask for: a catalogue of VM
// sizes, what a Node of each size really has left for pods, what it costs, and on
// which Hosts a NodeClass can have it now.
//
// Every type is listed with every known Host, whatever its state: only the
// Available flag changes, since Karpenter replaces Nodes whose offering vanished.
// Karpenter caches per object, so a change gives new objects and never a flip in
// place; what did not change is the same object as before.
//
// # What is left for pods
//
//	capacity      memory   = VM memory x (1 - overhead), rounded down to MiB: the
//	                         guest's firmware and kernel keep the rest
//	              disk     = 93 % of the boot disk: partitions and file system
//	kube reserved CPU      = 6 % of the first core, 1 % of the second, 0.5 % of the
//	                         next two, 0.25 % of all others
//	              memory   = 10 % of the first 4 GiB, 5 % of the next 12 GiB, 2 % of
//	                         the rest, at least 256 MiB
//	system reserved        = 10m CPU, 64 MiB
//	eviction               = 100 MiB memory, 10 % of the disk
//
// A type from a file may state its own overhead; what it leaves out is as above.
package instancetype
