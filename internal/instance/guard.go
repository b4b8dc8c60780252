// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"sync"
)

// errDeleteWins ends a launch whose Claim is being deleted.
var errDeleteWins = errors.New("the claim is being deleted")

// guard serialises launch and delete per Claim; delete wins.
type guard struct {
	mu      sync.Mutex
	entries map[string]*guardEntry
}

type guardEntry struct {
	users    int
	turn     chan struct{} // holds one token
	cancel   context.CancelCauseFunc
	deleting bool
}

func newGuard() *guard { return &guard{entries: map[string]*guardEntry{}} }

func (g *guard) join(uid string) *guardEntry {
	e, ok := g.entries[uid]
	if !ok {
		e = &guardEntry{turn: make(chan struct{}, 1)}
		g.entries[uid] = e
	}
	e.users++
	return e
}

func (g *guard) leave(uid string, e *guardEntry) {
	e.users--
	if e.users == 0 {
		delete(g.entries, uid)
	}
}

// launch takes the Claim for launching. The context ends with errDeleteWins when
// a delete comes. False when another launch or a delete has it.
func (g *guard) launch(ctx context.Context, uid string) (context.Context, func(), bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.join(uid)
	if e.deleting {
		g.leave(uid, e)
		return nil, nil, false
	}
	select {
	case e.turn <- struct{}{}:
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
		<-e.turn
		g.leave(uid, e)
	}, true
}

// delete takes the Claim for deleting: a launch under way is told to end, and
// waited for. False when ctx ended first.
func (g *guard) delete(ctx context.Context, uid string) (func(), bool) {
	g.mu.Lock()
	e := g.join(uid)
	e.deleting = true
	if e.cancel != nil {
		e.cancel(errDeleteWins)
	}
	g.mu.Unlock()
	release := func(took bool) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if took {
			<-e.turn
		}
		g.leave(uid, e)
	}
	select {
	case e.turn <- struct{}{}:
		return func() { release(true) }, true
	case <-ctx.Done():
		release(false)
		return nil, false
	}
}
