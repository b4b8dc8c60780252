// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos injects faults into launches, bootstrap cleanups and deletes, first
// systematically and then at random. Afterwards it checks the invariants: exactly one VM or
// none, according to the NodeClaim, and nothing leaked. TestPrepareAtEveryCall does the same
// with the builder VMs of a prepared template.
//
// The tests do what core does to NodeClaims themselves. test/soak injects random faults with
// Karpenter's own controllers.
//
// "go test" runs a sample with a fixed seed in under a minute. "make chaos" runs everything:
// every recorded call with every fault. CHAOS_SEED repeats a run.
package chaos
