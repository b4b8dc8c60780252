// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package soak runs random workloads for a long time, with the controller binary, a real
// Kubernetes control plane and a simulated Proxmox, while hosts fail, calls fail, the
// controller is killed and objects change. Some invariants are checked all the time, the
// others whenever the disturbances pause. "make soak" runs it.
package soak
