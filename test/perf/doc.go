// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package perf measures the controller against the simulator's lock and latency model: calls
// per node, launches and deletes relative to the critical path of Proxmox's own tasks, bursts
// relative to the lock model, how fast Create returns when Proxmox is slow, core's scheduler with
// our instance types, and how the cost of the controller grows with the number of nodes. Figures are counts and ratios within one run, so they are comparable
// between machines. figures.yaml lists what they may be and what the last "make bench" measured,
// and Page makes docs/performance.md of it.
//
// "go test" measures a small part and uses the best of a few attempts, because load on the
// machine only slows it down. "make bench" measures everything.
package perf
