// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tasks simulates the worker processes of Proxmox. A task has a UPID with host, process, type and owner, a log,
// and a result.
package tasks

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
)

// Work is the work of a task. The context ends when the task is stopped or its host goes down.
type Work func(ctx context.Context, t *Task) error

// Interfere is a hook that can delay, hang or fail a task before its work starts. A task that succeeds afterwards ends
// with the exit status, if there is one.
type Interfere func(ctx context.Context, u UPID) (exit string, err error)

// Task is a worker process.
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

// Logf appends a line to the log.
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

// State is the state of a task at one moment.
type State struct {
	UPID    UPID
	Running bool
	Exit    string
	End     time.Time
}

// State returns the current state.
func (t *Task) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return State{UPID: t.UPID, Running: t.exit == "", Exit: t.exit, End: t.end}
}

// Lines returns a copy of the log.
func (t *Task) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}

// Done returns a channel that is closed when the task has ended.
func (t *Task) Done() <-chan struct{} { return t.done }

// Registry holds all tasks of the cluster.
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

// NewRegistry returns a registry whose tasks end with the context base and run in the group.
func NewRegistry(base context.Context, c *clock.Clock, g *clock.Group) *Registry {
	return &Registry{
		clock: c, group: g, boot: time.Now().Add(-time.Hour), base: base,
		pids: map[string]int{}, byUPID: map[string]*Task{}, keep: 20000,
	}
}

// SetInterference sets the hook for faults.
func (r *Registry) SetInterference(f Interfere) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interfere = f
}

// Start starts a task. Like fork_worker, it returns as soon as the process exists.
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
	var exit string
	var err error
	if interfere != nil {
		exit, err = interfere(ctx, t.UPID)
	}
	if err == nil {
		err = work(ctx, t)
	}
	if err == nil && exit != "" {
		err = errors.New(exit)
	}
	t.finish(err, ctx.Err() != nil, r.clock.Now())
}

// finish writes the last line of the log. ended means that the worker was stopped or lost its host.
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
		// A worker that lost its host writes no last line.
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

// trim removes the oldest finished tasks, as Proxmox rotates its task archive. The caller holds r.mu.
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

// Get returns a task by its UPID, or nil.
func (r *Registry) Get(upid string) *Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byUPID[upid]
}

// Stop stops a task and waits until it has ended.
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

// ErrPowerLost is the cause of a context that ended because the host of the task lost power. The worker must not clean
// up.
var ErrPowerLost = errors.New("the host lost power")

// KillHost ends all running tasks of a host, as a loss of power does, and waits for them.
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

// UPID is a parsed task ID.
type UPID struct {
	Host      string
	PID       int
	PStart    int64
	StartTime int64
	Type      string
	ID        string
	User      string // with "!token" if the caller was a token
}

var upidPattern = regexp.MustCompile(`^UPID:([a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{8,9}):([0-9A-Fa-f]{8}):([^:\s]+):([^:\s]*):([^:\s]+):$`)

// ParseUPID parses a UPID. It returns false if it is not valid.
func ParseUPID(s string) (u UPID, ok bool) {
	m := upidPattern.FindStringSubmatch(s)
	if m == nil {
		return UPID{}, false
	}
	var numbers [3]int64
	for i := range numbers {
		n, err := strconv.ParseInt(m[2+i], 16, 64)
		if err != nil {
			return UPID{}, false
		}
		numbers[i] = n
	}
	return UPID{
		Host: m[1], PID: int(numbers[0]), PStart: numbers[1], StartTime: numbers[2], Type: m[5], ID: unescapeID(m[6]), User: m[7],
	}, true
}

func (u UPID) String() string {
	return fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", u.Host, u.PID, u.PStart, u.StartTime, u.Type, escapeID(u.ID), u.User)
}

// Owner returns the user and, if the caller was a token, its name.
func (u UPID) Owner() (user, token string) {
	user, token, _ = strings.Cut(u.User, "!")
	return user, token
}

// escapeID escapes characters that the UPID uses as separators.
func escapeID(id string) string {
	var b strings.Builder
	for i := range len(id) {
		if c := id[i]; c == ':' || c == '/' || c <= ' ' {
			fmt.Fprintf(&b, "\\x%02x", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

var escapedByte = regexp.MustCompile(`\\x([0-9a-f]{2})`)

func unescapeID(id string) string {
	return escapedByte.ReplaceAllStringFunc(id, func(s string) string {
		n, err := strconv.ParseUint(s[2:], 16, 8)
		if err != nil {
			return s
		}
		return string([]byte{byte(n)})
	})
}
