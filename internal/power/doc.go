// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package power decides which Hosts could be shut down to save energy, and which ones to wake.
// Decide is a pure function of a Region: the Hosts with what uses them, their settings, the
// votes for quorum, and the time. Every guard that keeps a Host awake is a Reason.
//
// ReadFacts reads what the inventory does not contain, with few calls for the whole Cluster.
// NewRegion combines it with a View.
package power
