// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"

// Types of Proxmox tasks.
const (
	TaskClone   = "qmclone"
	TaskDestroy = vm.TaskDestroy
	// taskStopAll stops all guests of a Host. Proxmox starts it when the Host shuts down.
	taskStopAll = "stopall"
)

// Locks that Proxmox sets in a VM's configuration.
const (
	// LockSuspended: the VM was suspended to disk. A start resumes it.
	LockSuspended = "suspended"
	// LockClone: a clone still writes the configuration.
	LockClone = "clone"
	// LockDestroyed: the VM is being destroyed.
	LockDestroyed = vm.LockDestroyed
)
