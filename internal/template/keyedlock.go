// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"sync"
)

// keyedLock serializes work with the same key, such as downloads of one image.
type keyedLock struct {
	mu    sync.Mutex
	byKey map[string]chan struct{}
}

func newKeyedLock() *keyedLock { return &keyedLock{byKey: map[string]chan struct{}{}} }

// acquire waits for the lock and returns the function that releases it. It fails when
// the context ends.
func (l *keyedLock) acquire(ctx context.Context, key string) (func(), error) {
	l.mu.Lock()
	lock, ok := l.byKey[key]
	if !ok {
		lock = make(chan struct{}, 1)
		l.byKey[key] = lock
	}
	l.mu.Unlock()
	select {
	case lock <- struct{}{}:
		return func() { <-lock }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
