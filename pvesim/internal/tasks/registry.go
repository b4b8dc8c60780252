// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
)

// Work is what a task does. The context ends when somebody stops the task or its host goes down.
type Work func(ctx context.Context, t *Task) error

// Interfere lets faults change how a task goes: it may delay, hang or fail it before the work starts.
type Interfere func(ctx context.Context, u UPID) error

// Task is one worker process.
type Task struct {
	UPID UPID

	mu       sync.Mutex
	lines    []string
	warnings int
	done     chan struct{}
	exit     string
	end      time.Time
	cancel   context.CancelCauseFunc
	stopped  bool
}

// Logf appends a line to the task's log.
func (t *Task) Logf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, strings.Split(line, "\n")...)
}

// Warnf appends a warning; a task with warnings ends with "WARNINGS: n" instead of "OK".
func (t *Task) Warnf(format string, args ...any) {
	t.Logf("WARN: "+format, args...)
	t.mu.Lock()
	t.warnings++
	t.mu.Unlock()
}

// State is a snapshot of a task for the API.
type State struct {
	UPID    UPID
	Running bool
	Exit    string
	End     time.Time
}

// State reads the task.
func (t *Task) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return State{UPID: t.UPID, Running: t.exit == "", Exit: t.exit, End: t.end}
}

// Lines copies the log.
func (t *Task) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}

// Done is closed when the task has ended.
func (t *Task) Done() <-chan struct{} { return t.done }

// Registry knows every task of the cluster.
type Registry struct {
	clock *clock.Clock
	boot  time.Time

	mu        sync.Mutex
	pids      map[string]int
	byUPID    map[string]*Task
	order     []*Task
	interfere Interfere
	base      context.Context
	group     *clock.Group
	keep      int
}

// NewRegistry returns a registry whose tasks all end when base does and run as members of the group.
func NewRegistry(base context.Context, c *clock.Clock, g *clock.Group) *Registry {
	return &Registry{
		clock: c, group: g, boot: time.Now().Add(-time.Hour), base: base,
		pids: map[string]int{}, byUPID: map[string]*Task{}, keep: 20000,
	}
}

// SetInterference installs the hook through which faults reach tasks.
func (r *Registry) SetInterference(f Interfere) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interfere = f
}

// Start forks a task. Like fork_worker it returns as soon as the process exists.
func (r *Registry) Start(host, typ, id, user string, work Work) *Task {
	ctx, cancel := context.WithCancelCause(r.base)
	now := r.clock.Now()
	r.mu.Lock()
	r.pids[host] += 7
	u := UPID{
		Host: host, PID: 4000 + r.pids[host], PStart: time.Since(r.boot).Milliseconds() / 10, StartTime: now.Unix(),
		Type: typ, ID: id, User: user,
	}
	t := &Task{UPID: u, done: make(chan struct{}), cancel: cancel}
	r.byUPID[u.String()] = t
	r.order = append(r.order, t)
	interfere := r.interfere
	r.trim()
	r.mu.Unlock()
	r.group.Go(func() { r.run(ctx, t, interfere, work) })
	return t
}

func (r *Registry) run(ctx context.Context, t *Task, interfere Interfere, work Work) {
	defer t.cancel(nil)
	var err error
	if interfere != nil {
		err = interfere(ctx, t.UPID)
	}
	if err == nil {
		err = work(ctx, t)
	}
	t.finish(err, ctx.Err() != nil, r.clock.Now())
}

// finish writes the last line of the log. ended says that the worker was stopped, or that its host went away.
func (t *Task) finish(err error, ended bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil && t.warnings > 0:
		t.exit = fmt.Sprintf("WARNINGS: %d", t.warnings)
		t.lines = append(t.lines, "TASK "+t.exit)
	case err == nil:
		t.exit = "OK"
		t.lines = append(t.lines, "TASK OK")
	case ended && !t.stopped:
		// The host went away under the worker: nobody wrote a last line.
		t.exit = "unexpected status"
	default:
		text := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", " ")
		if errors.Is(err, context.Canceled) {
			text = "received interrupt"
		}
		text = strings.ReplaceAll(text, context.Canceled.Error(), "interrupted by signal")
		t.exit = text
		t.lines = append(t.lines, "TASK ERROR: "+text)
	}
	t.end = now
	close(t.done)
}

// trim forgets the oldest finished tasks; Proxmox rotates its task archive too. The caller holds r.mu.
func (r *Registry) trim() {
	if len(r.order) <= r.keep {
		return
	}
	kept := r.order[:0]
	excess := len(r.order) - r.keep*9/10
	for _, t := range r.order {
		if excess > 0 && !t.State().Running {
			delete(r.byUPID, t.UPID.String())
			excess--
			continue
		}
		kept = append(kept, t)
	}
	r.order = kept
}

// Get finds a task by its id.
func (r *Registry) Get(upid string) *Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byUPID[upid]
}

// Stop kills a task's process and waits until it is gone.
func (r *Registry) Stop(ctx context.Context, t *Task) {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.cancel(nil)
	select {
	case <-t.done:
	case <-ctx.Done():
	}
}

// ErrPowerLost is the cause of a context that ended because the task's host did: there is nobody to clean up.
var ErrPowerLost = errors.New("the host lost power")

// KillHost ends every running task of a host as a power cut does, and waits for them.
func (r *Registry) KillHost(host string) {
	for _, t := range r.List() {
		if t.UPID.Host == host && t.State().Running {
			t.cancel(ErrPowerLost)
			<-t.done
		}
	}
}

// List returns all tasks, newest first.
func (r *Registry) List() []*Task {
	r.mu.Lock()
	out := append([]*Task(nil), r.order...)
	r.mu.Unlock()
	slices.Reverse(out)
	return out
}
