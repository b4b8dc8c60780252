// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// observer is a Proxmox client that measures when tasks were requested and when the controller
// noticed their end. The simulator tells when they ended.
type observer struct {
	proxmox.Client
	sim   *pvesim.Simulator
	mu    sync.Mutex
	tasks map[proxmox.UPID]*span
	// last are the newest tasks by kind.
	last map[string]*span
}

// requestTime is how long a request takes without load.
const requestTime = 33 * time.Millisecond

// span is the time between the response that named a task and the first one that could show its end.
type span struct{ began, ended, noticed time.Time }

func (s *span) took() time.Duration {
	if s == nil {
		return 0
	}
	return s.ended.Sub(s.began)
}

func observe(c proxmox.Client, sim *pvesim.Simulator) *observer {
	return &observer{Client: c, sim: sim, tasks: map[proxmox.UPID]*span{}, last: map[string]*span{}}
}

// watch measures a task from the moment Proxmox returned its ID. The time before belongs to
// the call and counts as the controller's.
func (o *observer) watch(task proxmox.UPID, err error) (proxmox.UPID, error) {
	if err != nil || task == "" {
		return task, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks[task] = &span{began: time.Now()}
	o.last[task.Kind()] = o.tasks[task]
	return task, nil
}

// notice records that the controller has read that tasks ended.
func (o *observer) notice(rows ...proxmox.TaskStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, row := range rows {
		if s := o.tasks[row.UPID]; s != nil && row.Ended() && s.noticed.IsZero() {
			s.noticed = time.Now()
			ended, _ := o.sim.TaskEnd(string(row.UPID))
			s.ended = ended.Add(requestTime)
		}
	}
}

func (o *observer) Task(ctx context.Context, task proxmox.UPID) (proxmox.TaskStatus, error) {
	status, err := o.Client.Task(ctx, task)
	if err == nil {
		o.notice(status)
	}
	return status, err
}

func (o *observer) RecentTasks(ctx context.Context, host, user string, since time.Time) ([]proxmox.TaskStatus, error) {
	rows, err := o.Client.RecentTasks(ctx, host, user, since)
	o.notice(rows...)
	return rows, err
}

// criticalPath returns the minimum time that Proxmox's tasks allow: the boot drive is uploaded
// during the clone, and the rest follows in sequence. A start that was requested while the
// disk was still being resized has waited for it; that time counts once.
func (o *observer) criticalPath() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	start, grow := *o.last["qmstart"], o.last["resize"]
	if grow != nil && grow.ended.After(start.began) {
		start.began = grow.ended
	}
	return max(o.last["qmclone"].took(), o.last["imgcopy"].took()) + grow.took() + start.took()
}

// deletePath returns the time that Proxmox's tasks of a delete take in sequence.
func (o *observer) deletePath() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last["qmstop"].took() + o.last["qmdestroy"].took() + o.last["imgdel"].took()
}

// reads returns how often the status of each task was read, relative to the bound.
func (o *observer) reads(counts map[string]int) []float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ratios []float64
	for task, s := range o.tasks {
		first := shortest[task.Kind()]
		if n := counts[string(task)]; n > 0 && first > 0 {
			ratios = append(ratios, float64(n)/(1+math.Log(max(1, s.noticed.Sub(s.began).Seconds()/first.Seconds()))/math.Log(1.2)))
		}
	}
	return ratios
}

// lateness returns how late the controller noticed the end of each task, relative to a fifth of the
// task's duration, or to 0.1 s if that is longer. Tasks that nobody waits for are not listed.
func (o *observer) lateness() []float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var late []float64
	for _, s := range o.tasks {
		if !s.noticed.IsZero() {
			late = append(late, s.noticed.Sub(s.ended).Seconds()/max(s.took()/5, 100*time.Millisecond).Seconds())
		}
	}
	return late
}

func (o *observer) StopVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	return o.watch(o.Client.StopVM(ctx, host, vmid))
}

func (o *observer) DestroyVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	return o.watch(o.Client.DestroyVM(ctx, host, vmid))
}

func (o *observer) DeleteVolume(ctx context.Context, host, volume string) (proxmox.UPID, error) {
	return o.watch(o.Client.DeleteVolume(ctx, host, volume))
}

func (o *observer) CloneVM(ctx context.Context, req proxmox.CloneRequest) (proxmox.UPID, error) {
	return o.watch(o.Client.CloneVM(ctx, req))
}

func (o *observer) UploadISO(ctx context.Context, host, storage, name string, image []byte) (proxmox.UPID, error) {
	return o.watch(o.Client.UploadISO(ctx, host, storage, name, image))
}

func (o *observer) ResizeDisk(ctx context.Context, host string, vmid int, disk string, bytes int64) (proxmox.UPID, error) {
	return o.watch(o.Client.ResizeDisk(ctx, host, vmid, disk, bytes))
}

func (o *observer) StartVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	return o.watch(o.Client.StartVM(ctx, host, vmid))
}
