// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package harness starts everything on one machine: a real Kubernetes control plane, a
// simulated Proxmox cluster whose guests boot from their boot drives, and the controller
// binary. The demo and the end-to-end tests use it, so it does not depend on testing.T.
//
// All processes end with the process that started them, however that process ends.
package harness
