// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"sync"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// slotKey is what parallel tasks contend for: a storage on a Host, or a shared storage
// in the whole Cluster (Host empty), since its lock is cluster-wide. Destroys have
// separate slots: they take seconds and would wait for clones that take minutes.
type slotKey struct{ kind, region, host, storage string }

func newSlotKey(view inventory.View, kind, region, host, storage string) slotKey {
	key := slotKey{kind: kind, region: region, host: host, storage: storage}
	if state, ok := view.Storage(region, host, storage); ok && state.Shared {
		key.host = ""
	}
	return key
}

// slots limits how many tasks of a type run in parallel on a storage. Proxmox fails a
// request that waits more than ten seconds for a storage lock and has no queue, so
// waiting here is faster than contending there.
type slots struct {
	limit int
	mu    sync.Mutex
	byKey map[slotKey]chan struct{}
}

func newSlots(limit int) *slots {
	return &slots{limit: limit, byKey: map[slotKey]chan struct{}{}}
}

// acquire waits for a slot. The returned function releases it.
func (s *slots) acquire(ctx context.Context, key slotKey) (func(), error) {
	s.mu.Lock()
	queue, ok := s.byKey[key]
	if !ok {
		queue = make(chan struct{}, s.limit)
		s.byKey[key] = queue
	}
	s.mu.Unlock()
	select {
	case queue <- struct{}{}:
		return func() { <-queue }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
