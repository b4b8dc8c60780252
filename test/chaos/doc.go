// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos breaks launches, hand-overs and deletes in every way that we can
// think of, and then in random ways, and looks at what is left: exactly one VM or
// none, as the Claim says, and nothing else.
//
// "go test" runs a sample with a fixed seed in under a minute. "make chaos" runs
// everything: every call that a recording finds, times every fault. CHAOS_SEED
// repeats a run, CHAOS_ROUNDS says how many random rounds there are.
package chaos
