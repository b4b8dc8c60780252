// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package locks models the three kinds of lock that make Proxmox calls wait or fail: flock files on one host, the
// cluster-wide directory locks of pmxcfs, and nothing else (the "lock:" key of a VM is part of its config).
package locks

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
)

// Mode says who else may hold a file lock at the same time.
type Mode int

// The two modes of flock(2).
const (
	Exclusive Mode = iota
	Shared
)

// Table holds every lock of a simulated cluster.
type Table struct {
	clock *clock.Clock

	mu      sync.Mutex
	files   map[string]*fileLock
	cluster map[string]bool
}

type fileLock struct {
	exclusive bool
	shared    int
	waiters   []*waiter
}

type waiter struct {
	mode    Mode
	granted chan struct{}
}

// New returns an empty lock table.
func New(c *clock.Clock) *Table {
	return &Table{clock: c, files: map[string]*fileLock{}, cluster: map[string]bool{}}
}

// File takes the flock on path of one host. onWait is called once if the lock is not free at once: Proxmox then prints
// "trying to acquire lock..." into the task's log. The error text is the one that Proxmox gives after the time-out.
func (t *Table) File(ctx context.Context, host, path string, mode Mode, timeout time.Duration, onWait func()) (release func(), err error) {
	key := host + ":" + path
	t.mu.Lock()
	l := t.files[key]
	if l == nil {
		l = &fileLock{}
		t.files[key] = l
	}
	if len(l.waiters) == 0 && l.admits(mode) {
		l.take(mode)
		t.mu.Unlock()
		return t.releaser(key, mode), nil
	}
	w := &waiter{mode: mode, granted: make(chan struct{})}
	l.waiters = append(l.waiters, w)
	t.mu.Unlock()
	if onWait != nil {
		onWait()
	}
	timer := time.NewTimer(t.clock.Timeout(timeout))
	defer timer.Stop()
	select {
	case <-w.granted:
		return t.releaser(key, mode), nil
	case <-timer.C:
		err = fmt.Errorf("can't lock file '%s' - got timeout", path)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if t.abandon(key, w) {
		return nil, err
	}
	// The grant raced with the time-out: the lock is ours after all.
	return t.releaser(key, mode), nil
}

func (l *fileLock) admits(m Mode) bool {
	if m == Shared {
		return !l.exclusive
	}
	return !l.exclusive && l.shared == 0
}

func (l *fileLock) take(m Mode) {
	if m == Shared {
		l.shared++
	} else {
		l.exclusive = true
	}
}

// abandon takes a waiter out of the queue; false means that it was granted the lock in the meantime.
func (t *Table) abandon(key string, w *waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.files[key]
	for i, other := range l.waiters {
		if other == w {
			l.waiters = append(l.waiters[:i], l.waiters[i+1:]...)
			t.wake(key, l)
			return true
		}
	}
	return false
}

func (t *Table) releaser(key string, mode Mode) func() {
	var once sync.Once
	return func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			l := t.files[key]
			if mode == Shared {
				l.shared--
			} else {
				l.exclusive = false
			}
			t.wake(key, l)
		})
	}
}

// wake hands the lock to those who wait, in their order; the caller holds t.mu.
func (t *Table) wake(key string, l *fileLock) {
	for len(l.waiters) > 0 && l.admits(l.waiters[0].mode) {
		w := l.waiters[0]
		l.waiters = l.waiters[1:]
		l.take(w.mode)
		close(w.granted)
	}
	if len(l.waiters) == 0 && !l.exclusive && l.shared == 0 {
		delete(t.files, key)
	}
}

// Cluster takes a pmxcfs lock. There is no queue: whoever tries at the right moment wins, everybody else looks again a
// second later, so many contenders on one shared storage starve and time out although the lock was often free.
func (t *Table) Cluster(ctx context.Context, name string, timeout time.Duration) (release func(), err error) {
	deadline := timeout
	for {
		if t.tryCluster(name) {
			return t.clusterReleaser(name), nil
		}
		if deadline <= 0 {
			return nil, fmt.Errorf("cfs-lock '%s' error: got lock request timeout", name)
		}
		select {
		case <-time.After(t.clock.Timeout(time.Second)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		deadline -= time.Second
	}
}

func (t *Table) tryCluster(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cluster[name] {
		return false
	}
	t.cluster[name] = true
	return true
}

func (t *Table) clusterReleaser(name string) func() {
	var once sync.Once
	return func() {
		once.Do(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.cluster, name)
		})
	}
}
