// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Records are what administrators and the power controller record about Hosts.
type Records struct {
	// Maintenance are the Hosts that administrators put into maintenance in Kubernetes.
	Maintenance Maintenance
	// MaintenanceUnknown is true if Maintenance could not be read since the start.
	MaintenanceUnknown bool
	// Fences are the Hosts that administrators declare as powered off.
	Fences map[observed.HostName]Fence
	// Sleeping are the Hosts that were shut down to save energy.
	Sleeping map[observed.HostName]Sleep
	// SleepingOutdated is true if another process may have changed Sleeping since it was read, and SleepingFailure
	// why this process cannot read it.
	SleepingOutdated bool
	SleepingFailure  string
}

// KnownHosts returns what is known about the sleeping Hosts of a region, by name.
func (r Records) KnownHosts(region string) map[string]observed.KnownHost {
	known := map[string]observed.KnownHost{}
	for name, sleep := range r.Sleeping {
		if name.Region == region {
			known[name.Host] = sleep.Known
		}
	}
	return known
}
