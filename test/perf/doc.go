// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package perf measures launches against the simulator's lock and latency model:
// calls per node, time against the critical path of Proxmox's own tasks, bursts
// against what the locks allow at best, and how fast Create answers when Proxmox is
// slow. Figures are counts and ratios within one run, so that they mean the same on
// any machine; ranges.yaml says what each may be at most.
//
// "go test" measures a small part, and takes the best of a few tries: other work on
// the machine only ever slows things down. "make bench" measures all of it.
package perf
