// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package clock

import "sync"

// Group waits for goroutines. Unlike with sync.WaitGroup, goroutines can start while Wait blocks, which happens when a
// simulator is closed during activity.
type Group struct {
	mu   sync.Mutex
	idle *sync.Cond
	n    int
}

// NewGroup returns an empty group.
func NewGroup() *Group {
	g := &Group{}
	g.idle = sync.NewCond(&g.mu)
	return g
}

// Go runs f in a goroutine of the group.
func (g *Group) Go(f func()) {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
	go func() {
		defer func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.n--; g.n == 0 {
				g.idle.Broadcast()
			}
		}()
		f()
	}()
}

// Wait blocks until no goroutine of the group runs.
func (g *Group) Wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.n > 0 {
		g.idle.Wait()
	}
}
