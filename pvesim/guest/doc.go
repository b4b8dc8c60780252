// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest simulates the operating system inside the simulator's VMs: a small
// Linux configured by cloud-init, Ignition or a Talos machine config, with a kubelet
// that runs no containers.
//
// A guest takes all configuration from its boot drive, as a real guest does. It reads
// the CD-ROM labeled cidata, applies its contents, and starts the kubelet, k3s or
// RKE2 agent if configured: the agent requests a certificate from a real API server
// with the token from the boot data, registers its Node, renews its Lease and moves
// pods to Running. Errors in the boot data have the same effect as on a real guest:
// the console shows the reason, and no Node joins.
//
// A deleted pod ends as with a kubelet: pre-stop hooks that sleep take their time, a
// container whose process is sleep ignores SIGTERM until its grace period ends, and
// everything else ends immediately. Options.PodGraceLimit shortens this.
//
// Commands are not executed. The guest interprets touch, and systemctl for these
// services, also in scripts written by the boot data, and ignores other commands.
package guest
