// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package poll reads Proxmox clusters.
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
package poll
