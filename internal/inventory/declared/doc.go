// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package declared contains what administrators and the power controller declare about Hosts: the file
// of host settings, maintenance, Hosts that were powered off, and those that sleep to save energy.
//
// # Allocatable capacity of a Host
//
// Allocatable = (CPUs - reserved CPUs) x CPU ratio, and the same for memory. HostSettings
// documents the settings and their defaults.
package declared
