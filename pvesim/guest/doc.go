// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest is what runs inside the simulator's VMs: a small Linux that obeys
// cloud-init, Ignition or Talos' machine config, and a kubelet without containers.
//
// A guest learns everything from its boot drive, as a real one does. It finds
// the CD-ROM labelled cidata, obeys what is on it, and starts its kubelet, k3s or
// RKE2 agent if told to: that one asks a real API server for its certificate with
// the token that the boot data brought, registers its Node, renews its Lease and
// moves pods to Running. What the boot data gets wrong goes wrong here too: the
// reason stands on the guest's console, and no Node joins.
//
// Commands are not executed. The guest understands systemctl for these services and
// touch, also inside scripts that the boot data wrote, and passes over the rest.
package guest
