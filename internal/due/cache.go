// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package due caches values that are read from elsewhere, and knows when each is due to be read
// again: Cache.Get reads a value on demand, while callers of Cache.Peek and Cache.Read decide
// themselves in which order they read what is due.
package due

import (
	"context"
	"iter"
	"maps"
	"reflect"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
)

// Policy is when values are due. A value that was never read is always due.
type Policy struct {
	// Every is the age at which a value is due again; 0 = only after a change.
	Every time.Duration
	// MinAge is the age below which Invalidate has no effect yet.
	MinAge time.Duration
	// Retry is the delay after a failed read; 0 = due at once.
	Retry backoff.Exponential
}

// Entry is a value in a Cache.
type Entry[V any] struct {
	// Value is the last one that was read. It is the same until the value changes.
	Value V
	// Known is true once the value was read.
	Known bool
	// Err is the error of the last read, Failures the number of failed reads since the last
	// successful one.
	Err      error
	Failures int
	// Changed is true from Invalidate, or a change of the stamp, to a successful read that
	// began afterwards.
	Changed bool

	at      time.Time // of the last read
	stamp   any
	changes int
	reading bool
}

// Cache caches values by key. All methods are safe for concurrent use.
type Cache[K comparable, V any] struct {
	clock  clock.PassiveClock
	policy func(K) Policy

	mu      sync.Mutex
	entries map[K]*Entry[V]
}

// New returns an empty Cache.
func New[K comparable, V any](clock clock.PassiveClock, policy func(K) Policy) *Cache[K, V] {
	return &Cache[K, V]{clock: clock, policy: policy, entries: map[K]*Entry[V]{}}
}

// entry returns the entry of a key. The caller holds the lock.
func (c *Cache[K, V]) entry(key K) *Entry[V] {
	e := c.entries[key]
	if e == nil {
		e = &Entry[V]{Changed: true}
		c.entries[key] = e
	}
	return e
}

// Expect adds a key. A stamp other than the last one makes its value due, which ends the delay
// after a failure. Stamps are comparable.
func (c *Cache[K, V]) Expect(key K, stamp any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entry(key); e.stamp != stamp {
		e.stamp, e.Changed, e.Failures, e.Err, e.at = stamp, true, 0, nil, time.Time{}
		e.changes++
	}
}

// Invalidate makes values due: they may have changed.
func (c *Cache[K, V]) Invalidate(keys ...K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		e := c.entry(key)
		e.Changed = true
		e.changes++
	}
}

// Keep removes the keys for which keep returns false.
func (c *Cache[K, V]) Keep(keep func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.entries, func(key K, _ *Entry[V]) bool { return !keep(key) })
}

// All iterates over all entries. The caller must not use the Cache meanwhile.
func (c *Cache[K, V]) All() iter.Seq2[K, Entry[V]] {
	return func(yield func(K, Entry[V]) bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for key, e := range c.entries {
			if !yield(key, *e) {
				return
			}
		}
	}
}

// Peek returns the entry of a key, the time since its last read, and whether it is due. A value
// that another caller reads is not due.
func (c *Cache[K, V]) Peek(key K) (entry Entry[V], age time.Duration, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return entry, 0, true
	}
	policy := c.policy(key)
	age = c.clock.Since(e.at)
	switch {
	case e.reading && e.Known:
	case e.Failures > 0:
		due = age >= policy.Retry.Delay(e.Failures-1)
	case e.Changed:
		due = age >= policy.MinAge
	default:
		due = policy.Every > 0 && age >= policy.Every
	}
	return *e, age, due
}

// Read reads a value and reports whether it changed. After an error, the last value remains.
func (c *Cache[K, V]) Read(ctx context.Context, key K, read func(context.Context) (V, error)) (changed bool, err error) {
	c.mu.Lock()
	e := c.entry(key)
	e.reading = true
	changes := e.changes
	c.mu.Unlock()
	value, err := read(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	e.at, e.Err, e.reading = c.clock.Now(), err, false
	if err != nil {
		e.Failures++
		return false, err
	}
	e.Failures, e.Changed = 0, e.changes != changes
	if e.Known && reflect.DeepEqual(e.Value, value) {
		return false, nil
	}
	e.Value, e.Known = value, true
	return true, nil
}

// Drop removes the value of a key, but not its delay, and reports whether there was one.
func (c *Cache[K, V]) Drop(key K) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(key)
	known := e.Known
	e.Value, e.Known = *new(V), false
	return known
}

// Get returns the value of a key, which it reads if it is due. If that fails, it returns the last
// value and the error.
func (c *Cache[K, V]) Get(ctx context.Context, key K, stamp any, read func(context.Context) (V, error)) (V, error) {
	c.Expect(key, stamp)
	if _, _, due := c.Peek(key); due {
		_, _ = c.Read(ctx, key, read) // the entry has the error
	}
	e, _, _ := c.Peek(key)
	return e.Value, e.Err
}
