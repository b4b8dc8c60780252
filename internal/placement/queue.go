// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import "time"

// CloneQueue limits how long a VM waits for its clone. Core deletes a Claim whose Node does
// not register in time.
type CloneQueue struct {
	// Slots is how many clones run in parallel on a storage.
	Slots int
	// Limit is how long after its creation the clone of a Claim must have ended.
	Limit time.Duration
	// Duration returns how long a clone takes on a storage; 0 if that is unknown.
	Duration func(region, host, storage string) time.Duration
}

// checkQueue checks whether the clone of the VM would end in time. While a slot is free
// it does not wait.
func checkQueue(s *zoneState, need *Need, addReason reasonFunc) bool {
	queue, waiting := need.CloneQueue, s.disk.QueuedClones
	if queue == nil || !s.hasDisk || waiting < queue.Slots {
		return true
	}
	duration := queue.Duration(s.zone.Region, s.zone.Host, s.storage)
	if duration == 0 {
		return true
	}
	// The VM is cloned after all that are waiting, in rounds of as many as there are slots.
	expected := time.Duration(waiting/queue.Slots+1) * duration
	if expected <= queue.Limit {
		return true
	}
	if addReason != nil {
		addReason("%d clones wait for storage %s and take about %s each, %d at a time: a VM would be cloned in %s, the limit is %s",
			waiting, s.storage, duration.Round(time.Second), queue.Slots, expected.Round(time.Second), queue.Limit)
	}
	return false
}
