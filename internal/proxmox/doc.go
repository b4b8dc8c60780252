// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox is the client of the Proxmox VE API.
//
// It provides a narrow [Client] with only the calls that the provider makes, typed
// errors by the caller's next step (see errors.go), and parsers for values that
// Proxmox stores as text: VM configs, property strings, UPIDs.
//
// The HTTP side is part of this package because correctness depends on it: Proxmox
// sends its message in the reason phrase of the status line, 500 for a missing VM, 596
// for an unknown outcome, and no specific status for most other errors. The client
// classifies responses, fails over between a Cluster's URLs without repeating a
// request that may have taken effect, and renews credentials.
package proxmox
