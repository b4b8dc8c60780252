// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package whatif predicts which VMs Karpenter would create after a change: more pods, a
// lost Host, other host settings, another NodeClass. It runs Karpenter core's provisioner
// and NodeClaim lifecycle with this provider's cloud provider, on a State: a copy of the
// Kubernetes objects in a fake API and of the Snapshots in an Inventory that sends no
// requests. Nothing is created in Kubernetes or Proxmox.
package whatif
