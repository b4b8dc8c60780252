// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keyed limits concurrent work by key, such as clones on one storage or
// downloads of one image.
package keyed

import (
	"context"
	"sync"
)

// Semaphore limits how much work with the same key runs concurrently. With a limit of
// 1 it is a lock.
type Semaphore[K comparable] struct {
	limit int
	mu    sync.Mutex
	byKey map[K]chan struct{}
}

// NewSemaphore returns a Semaphore with the given limit for each key.
func NewSemaphore[K comparable](limit int) *Semaphore[K] {
	return &Semaphore[K]{limit: limit, byKey: map[K]chan struct{}{}}
}

// Acquire waits until less work than the limit runs for the key, and returns the
// function that releases it. It returns the cause when ctx ends first.
func (s *Semaphore[K]) Acquire(ctx context.Context, key K) (release func(), err error) {
	s.mu.Lock()
	slots, ok := s.byKey[key]
	if !ok {
		slots = make(chan struct{}, s.limit)
		s.byKey[key] = slots
	}
	s.mu.Unlock()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
