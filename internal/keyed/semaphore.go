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
	slots := s.slots(key)
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TryAcquire is like Acquire, but returns false if it would have to wait.
func (s *Semaphore[K]) TryAcquire(key K) (release func(), ok bool) {
	slots := s.slots(key)
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, true
	default:
		return nil, false
	}
}

// slots returns the channel of a key, whose capacity is the limit.
func (s *Semaphore[K]) slots(key K) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots, ok := s.byKey[key]
	if !ok {
		slots = make(chan struct{}, s.limit)
		s.byKey[key] = slots
	}
	return slots
}
