// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e holds the end-to-end tests: whole control planes, the controller
// binary, simulated Proxmox clusters, and guests that join with the token from
// their own ISO. KUBEPLANE and CONTROLLER name the binaries; make e2e sets them.
package e2e
