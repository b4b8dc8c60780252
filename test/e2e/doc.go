// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e contains the end-to-end tests: control planes, the controller binary, simulated
// Proxmox clusters, and guests that join with the token from their own ISO. KUBEPLANE
// and CONTROLLER are the paths of the binaries; make e2e sets them.
//
// With E2E_PROXMOX_CONFIG the same tests run against a user's own Proxmox cluster as far as it
// allows; see docs/e2e.md.
package e2e
