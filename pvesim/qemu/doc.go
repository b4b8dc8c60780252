// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qemu runs the VMs of the simulator as QEMU processes with real operating systems: a Runtime starts one process
// per VM from the VM's own options, with its disks as overlays of the image that its template was created from, and
// applies power operations and changes of media through QEMU's monitor. It needs qemu-system-x86_64 and qemu-img, and
// works without root and without KVM.
package qemu
