// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest is what runs inside the simulator's VMs: a small Linux that obeys
// cloud-init, Ignition or Talos' machine config, and a kubelet without containers.
//
// A guest takes all configuration from its boot drive, as a real one does. It reads
// the CD-ROM labeled cidata, applies its contents, and starts the kubelet, k3s or
// RKE2 agent if configured: the agent requests a certificate from a real API server
// with the token of the boot data, registers its Node, renews its Lease and moves
// pods to Running. Errors in the boot data have the same effect as on a real guest:
// the console shows the reason, and no Node joins.
//
// Commands are not executed. The guest understands systemctl for these services and
// touch, also inside scripts that the boot data wrote, and passes over the rest.
package guest
