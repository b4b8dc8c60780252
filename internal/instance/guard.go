// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"sync"
)

// ErrClaimDeleting is the cause that ends a launch whose Claim is being deleted.
var ErrClaimDeleting = errors.New("the NodeClaim is being deleted")

// Guard is a lock per Claim. A delete ends a launch that holds the lock.
type Guard struct {
	mu      sync.Mutex
	entries map[string]*guardEntry
}

type guardEntry struct {
	users    int
	held     chan struct{} // has one element while the lock is held
	cancel   context.CancelCauseFunc
	deleting bool
}

// NewGuard returns a Guard.
func NewGuard() *Guard { return &Guard{entries: map[string]*guardEntry{}} }

func (g *Guard) join(uid string) *guardEntry {
	e, ok := g.entries[uid]
	if !ok {
		e = &guardEntry{held: make(chan struct{}, 1)}
		g.entries[uid] = e
	}
	e.users++
	return e
}

func (g *Guard) leave(uid string, e *guardEntry) {
	e.users--
	if e.users == 0 {
		delete(g.entries, uid)
	}
}

// AcquireLaunch locks a Claim for a launch or a change of its VM, without waiting: it
// returns false while another launch or a delete has the lock. A delete cancels the
// returned context with ErrClaimDeleting.
func (g *Guard) AcquireLaunch(ctx context.Context, uid string) (_ context.Context, release func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.join(uid)
	if e.deleting {
		g.leave(uid, e)
		return nil, nil, false
	}
	select {
	case e.held <- struct{}{}:
	default:
		g.leave(uid, e)
		return nil, nil, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	e.cancel = cancel
	return ctx, func() {
		cancel(nil)
		g.mu.Lock()
		defer g.mu.Unlock()
		e.cancel = nil
		<-e.held
		g.leave(uid, e)
	}, true
}

// AcquireDelete locks a Claim for a delete. It cancels a launch in progress and waits
// for its end. It returns false if ctx ends first.
func (g *Guard) AcquireDelete(ctx context.Context, uid string) (release func(), ok bool) {
	g.mu.Lock()
	e := g.join(uid)
	e.deleting = true
	if e.cancel != nil {
		e.cancel(ErrClaimDeleting)
	}
	g.mu.Unlock()
	leave := func(acquired bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if acquired {
			<-e.held
		}
		g.leave(uid, e)
	}
	select {
	case e.held <- struct{}{}:
		return func() { leave(true) }, true
	case <-ctx.Done():
		leave(false)
		return nil, false
	}
}
