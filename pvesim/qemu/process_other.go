// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package qemu

import "syscall"

// childAttributes gives the child its own process group. Only Linux has a parent-death signal.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
