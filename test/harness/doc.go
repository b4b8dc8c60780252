// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package harness brings up the whole world on one machine: a real Kubernetes
// control plane, a simulated Proxmox cluster whose guests really boot from what
// they are given, and the controller binary. The demo and the end-to-end tests
// stand on it, so it knows nothing of testing.T.
//
// Everything it starts ends with the process that started it, however that ends.
package harness
