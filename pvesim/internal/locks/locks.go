// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package locks simulates the locks that make Proxmox calls wait or fail: flock files on one host and the cluster-wide
// directory locks of pmxcfs. The "lock:" key of a VM is part of its config.
package locks

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
)

// Mode is the mode of a file lock.
type Mode int

// The two modes of flock(2).
const (
	Exclusive Mode = iota
	Shared
)

// Table holds all locks of a simulated cluster.
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

// File acquires the flock on a path of a host. It calls onWait once if it has to wait: Proxmox then writes "trying to
// acquire lock..." into the log of the task. It fails with the text of Proxmox after the timeout.
func (t *Table) File(ctx context.Context, host, path string, mode Mode, timeout time.Duration, onWait func()) (release func(), err error) {
	key := host + ":" + path
	t.mu.Lock()
	l := t.files[key]
	if l == nil {
		l = &fileLock{}
		t.files[key] = l
	}
	if len(l.waiters) == 0 && l.allows(mode) {
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
	timer := time.NewTimer(t.clock.LockTimeout(timeout))
	defer timer.Stop()
	select {
	case <-w.granted:
		return t.releaser(key, mode), nil
	case <-timer.C:
		err = fmt.Errorf("can't lock file '%s' - got timeout", path)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if t.cancelWait(key, w) {
		return nil, err
	}
	// The lock was granted when the timeout ended.
	return t.releaser(key, mode), nil
}

func (l *fileLock) allows(m Mode) bool {
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

// cancelWait removes a waiter from the queue. It returns false if the waiter has the lock by now.
func (t *Table) cancelWait(key string, w *waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.files[key]
	i := slices.Index(l.waiters, w)
	if i < 0 {
		return false
	}
	l.waiters = slices.Delete(l.waiters, i, i+1)
	t.grantWaiters(key, l)
	return true
}

func (t *Table) releaser(key string, mode Mode) func() {
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		l := t.files[key]
		if mode == Shared {
			l.shared--
		} else {
			l.exclusive = false
		}
		t.grantWaiters(key, l)
	})
}

// grantWaiters grants the lock to waiters in their order. The caller holds t.mu.
func (t *Table) grantWaiters(key string, l *fileLock) {
	for len(l.waiters) > 0 && l.allows(l.waiters[0].mode) {
		w := l.waiters[0]
		l.waiters = l.waiters[1:]
		l.take(w.mode)
		close(w.granted)
	}
	if len(l.waiters) == 0 && !l.exclusive && l.shared == 0 {
		delete(t.files, key)
	}
}

// Cluster acquires a pmxcfs lock. These locks have no queue: all contenders retry once a second, so with many
// contenders on one shared storage some time out although the lock was often free.
func (t *Table) Cluster(ctx context.Context, name string, timeout time.Duration) (release func(), err error) {
	interval := t.clock.Timeout(time.Second)
	for retries := t.clock.LockTimeout(timeout) / interval; ; retries-- {
		if t.tryCluster(name) {
			return t.clusterReleaser(name), nil
		}
		if retries <= 0 {
			return nil, fmt.Errorf("cfs-lock '%s' error: got lock request timeout", name)
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
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
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.cluster, name)
	})
}
