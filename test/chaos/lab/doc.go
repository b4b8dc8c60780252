// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab is a small world to break things in: a simulated Proxmox, a
// Kubernetes API without a control plane, and controllers that run the product's
// own reconcilers and can be killed at any moment. A Process stands for one run of
// the controller binary, with the little that Karpenter's core does to a Claim
// around it; the World checks what is left behind.
package lab
