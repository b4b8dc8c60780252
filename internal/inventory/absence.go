// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync"
	"time"
)

// maxAbsencePause is longer than the pause between two calls of IsRemoved for a Host that
// something waits for.
const maxAbsencePause = time.Minute

// Absences tracks Hosts that are missing in their Clusters. The zero value is ready to use.
type Absences struct {
	mu    sync.Mutex
	hosts map[HostName]absence
}

// absence is when a Host was first and last seen to be missing.
type absence struct{ first, last time.Time }

// IsRemoved reports whether a Host was removed permanently from its Cluster: the Cluster is
// reachable and has had no such Host for the given duration, even if it still lists guests of it.
// An offline Host is listed.
func (a *Absences) IsRemoved(view View, host HostName, after time.Duration, now time.Time) bool {
	if host.Host == "" || view.Snapshots[host.Region] == nil || view.Failures[host.Region] != nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, member := view.Host(host.Region, host.Host); member {
		delete(a.hosts, host)
		return false
	}
	// After a longer pause, the Host may have been a member in the meantime.
	seen, ok := a.hosts[host]
	if !ok || now.Sub(seen.last) >= max(after, maxAbsencePause) {
		seen.first = now
	}
	seen.last = now
	if a.hosts == nil {
		a.hosts = map[HostName]absence{}
	}
	a.hosts[host] = seen
	return now.Sub(seen.first) >= after
}
