// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"slices"
	"sync"
	"time"
)

// TaskPolls shares polls between all that wait for tasks on the same Host: a single
// wait reads its task, several read the Host's task list, which shows all of them in
// one call. It is safe for concurrent use.
type TaskPolls struct {
	mu    sync.Mutex
	hosts map[pollKey]*hostPolls
}

type pollKey struct {
	client TaskClient
	host   string
}

type hostPolls struct {
	waits []*taskWait
	// listed is when the task list was requested last.
	listed time.Time
}

const (
	// Lists are requested at intervals of listInterval for each wait on the Host: in a
	// burst a list ends several waits.
	listInterval    = 50 * time.Millisecond
	maxListInterval = 500 * time.Millisecond
	// maxLists is how many intervals a wait relies on lists before it reads its task. Proxmox updates
	// the list when the process that started the task notices its end, which a busy Host delays.
	maxLists = 3
)

// NewTaskPolls returns TaskPolls without waits.
func NewTaskPolls() *TaskPolls { return &TaskPolls{hosts: map[pollKey]*hostPolls{}} }

// join adds a wait. The returned function removes it.
func (p *TaskPolls) join(w *taskWait) (leave func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := pollKey{w.client, w.task.Host()}
	h := p.hosts[key]
	if h == nil {
		h = &hostPolls{}
		p.hosts[key] = h
	}
	h.waits = append(h.waits, w)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		h.waits = slices.DeleteFunc(h.waits, func(other *taskWait) bool { return other == w })
		if len(h.waits) == 0 {
			delete(p.hosts, key)
		}
	}
}

// next returns what a wait whose poll is due does: read its task (no tasks), list the
// Host's tasks (the awaited ones), or wait because a list was just requested.
func (p *TaskPolls) next(w *taskWait) (tasks []UPID, delay time.Duration) {
	if p == nil {
		return nil, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[pollKey{w.client, w.task.Host()}]
	if len(h.waits) == 1 || w.lists >= maxLists {
		w.lists = 0
		return nil, 0
	}
	interval := min(time.Duration(len(h.waits))*listInterval, maxListInterval)
	w.lists++
	if since := w.Clock.Since(h.listed); since < interval {
		return nil, interval - since
	}
	h.listed = w.Clock.Now()
	for _, other := range h.waits {
		tasks = append(tasks, other.task)
	}
	return tasks, 0
}

// list reads the Host's task list, ends the waits for tasks that have ended, and
// returns the status of w's task; false if the list does not contain it.
func (p *TaskPolls) list(ctx context.Context, w *taskWait, tasks []UPID) (TaskStatus, bool, error) {
	since := slices.MinFunc(tasks, func(a, b UPID) int { return a.Started().Compare(b.Started()) }).Started()
	rows, err := w.client.RecentTasks(ctx, w.task.Host(), w.task.User(), since)
	if err != nil {
		return TaskStatus{}, false, err
	}
	byTask := map[UPID]TaskStatus{}
	for _, row := range rows {
		// A task that just ended may be listed twice.
		if row.Running && byTask[row.UPID].Ended() {
			continue
		}
		byTask[row.UPID] = row
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.hosts[pollKey{w.client, w.task.Host()}].waits {
		if status, ok := byTask[other.task]; ok && status.Ended() && other != w {
			select {
			case other.ended <- status:
			default:
			}
		}
	}
	status, ok := byTask[w.task]
	return status, ok, nil
}
