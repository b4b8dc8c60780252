// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab is a test environment for fault injection: a simulated Proxmox, a Kubernetes API
// without a control plane, and controllers that run the product's reconcilers and can be
// killed at any time. A Process is one run of the controller binary, including the parts of
// Karpenter's core that act on NodeClaims. The Env checks the invariants.
package lab
