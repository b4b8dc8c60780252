// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instancetype lists the instance types that Karpenter can choose from: a
// catalog of VM sizes with their capacity, overhead and price, and the offerings, which
// are the Hosts where a NodeClass can launch them now. Provider is the main type. The
// price of an offering is computed in price.go.
//
// Every type is listed with every known Host, whatever its state. Only the Available
// flag changes, because Karpenter replaces Nodes whose offering disappeared. For the same
// reason, the sizes and labels of existing Nodes are listed, see nodes.go. Karpenter
// caches per object, so a changed type is a new object and an unchanged type is the same
// object as before.
//
// # Capacity and overhead
//
//	capacity      memory   = VM memory - overhead, rounded down to MiB: firmware and
//	                         kernel of the guest use the overhead, see memory.go
//	              disk     = 93 % of the boot disk: partitions and file system
//	kube reserved CPU      = 6 % of the first core, 1 % of the second, 0.5 % of the
//	                         next two, 0.25 % of all others
//	              memory   = 10 % of the first 4 GiB, 5 % of the next 12 GiB, 2 % of
//	                         the rest, at least 256 MiB
//	system reserved        = 10m CPU, 64 MiB
//	eviction               = 100 MiB memory, 10 % of the disk
//
// A type from a file may specify its own overhead; omitted parts are computed as above.
// The kubelet configuration of a NodeClass takes precedence over both, see kubelet.go.
package instancetype
