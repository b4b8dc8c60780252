// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"context"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// taskPollInterval is how often the observer polls a task.
const taskPollInterval = 10 * time.Millisecond

// observer is a Proxmox client that measures how long tasks take, independent of when the
// controller notices their end.
type observer struct {
	proxmox.Client
	watching sync.WaitGroup
	mu       sync.Mutex
	tasks    map[string]span
}

// span is the time between the response that named a task and its end.
type span struct{ began, ended time.Time }

func (s span) took() time.Duration { return s.ended.Sub(s.began) }

func observe(c proxmox.Client) *observer {
	return &observer{Client: c, tasks: map[string]span{}}
}

// watch measures a task from the moment Proxmox returned its ID. The time before belongs to
// the call and counts as the controller's.
func (o *observer) watch(task proxmox.UPID, err error) (proxmox.UPID, error) {
	if err != nil {
		return task, err
	}
	began := time.Now()
	o.watching.Go(func() {
		for {
			status, err := o.Task(context.Background(), task)
			if err == nil && !status.Running {
				break
			}
			time.Sleep(taskPollInterval)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.tasks[task.Kind()] = span{began, time.Now()}
	})
	return task, nil
}

// criticalPath returns the minimum time that Proxmox's tasks allow: the boot drive is uploaded
// during the clone, and the rest follows in sequence. A start that was requested while the
// disk was still being resized has waited for it; that time counts once.
func (o *observer) criticalPath() time.Duration {
	o.watching.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	grow, start := o.tasks["resize"], o.tasks["qmstart"]
	if grow.ended.After(start.began) {
		start.began = grow.ended
	}
	return max(o.tasks["qmclone"].took(), o.tasks["imgcopy"].took()) + grow.took() + start.took()
}

// deletePath returns the time that Proxmox's tasks of a delete take in sequence.
func (o *observer) deletePath() time.Duration {
	o.watching.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tasks["qmstop"].took() + o.tasks["qmdestroy"].took() + o.tasks["imgdel"].took()
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
