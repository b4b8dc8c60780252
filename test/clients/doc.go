// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clients runs Proxmox clients of other projects, unmodified, against pvesim: the
// integration tests of go-proxmox, and the command line of Telmate's proxmox-api-go. Their
// authors wrote them against a real Proxmox VE, so what they accept is evidence that is
// independent of this project.
package clients

// go-proxmox is listed in go.mod because its tests are run. The tests of newer versions, up to
// v0.8.1, do not compile with the API of their own version.
import _ "github.com/luthermonson/go-proxmox"
