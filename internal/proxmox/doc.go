// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox is the only place that speaks to a Proxmox VE API.
//
// It gives the rest of the provider three things: a narrow [Client] of the calls
// that are used, an error for each next step that a caller could take (see
// errors.go), and the reading of what Proxmox stores as text: VM configs,
// property strings, task names.
//
// The client stands on github.com/luthermonson/go-proxmox, which makes the
// requests. Below it stands our own transport, because everything that decides
// about right and wrong is on the wire: Proxmox puts its message into the reason
// phrase of the status line, answers 500 for "no such VM", 596 for "I do not
// know whether that happened", and has no status code for most of what can go
// wrong. The transport turns an answer into an error before go-proxmox sees it,
// fails over between a Cluster's URLs without ever repeating a request that may
// have taken effect, and renews credentials.
package proxmox
