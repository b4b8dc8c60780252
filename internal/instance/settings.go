// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// Settings are the limits that an operator may change.
type Settings struct {
	// SystemNamespace is the namespace of the ConfigMaps of administrators.
	SystemNamespace string
	// VMIDs is the range of the VMs' ids.
	VMIDs placement.Range
	// CloneSlots limits parallel clones and parallel destroys per storage: on one Host,
	// or in the whole Cluster if the storage is shared.
	CloneSlots int
	// TaskTimeout limits the wait for one Proxmox task.
	TaskTimeout time.Duration
	// LaunchRetryTimeout is how long a launch is retried after transient errors.
	LaunchRetryTimeout time.Duration
	// StaticCapacityTimeout is how long a Claim of a static NodePool waits for capacity
	// before it is replaced.
	StaticCapacityTimeout time.Duration
	// OperationTimeout limits how long one attempt to delete or restart a VM waits for
	// Proxmox. The task continues; the next attempt finds its result. A request that
	// changes something is not canceled.
	OperationTimeout time.Duration
	// ShutdownTimeout is how long the guest of a ready Node may take to shut down before
	// it is stopped; 0 stops it without a shutdown.
	ShutdownTimeout time.Duration
	// HostRemovedAfter is the delay after which VMs of a Host that left its Cluster
	// count as deleted.
	HostRemovedAfter time.Duration
	// CloneSlowAfter causes a warning, CloneRefuseAfter makes a Host unavailable.
	CloneSlowAfter, CloneRefuseAfter time.Duration
}
