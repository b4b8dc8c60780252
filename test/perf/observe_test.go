// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"context"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// glance is how often the observer looks at a task.
const glance = 5 * time.Millisecond

// observer stands between the product and Proxmox and watches how long the tasks
// themselves take, whenever the product gets to know.
type observer struct {
	proxmox.Client
	watching sync.WaitGroup
	mu       sync.Mutex
	tasks    map[string]span
}

// span is the time between the answer that named a task and its end.
type span struct{ began, ended time.Time }

func (s span) took() time.Duration { return s.ended.Sub(s.began) }

func observe(c proxmox.Client) *observer {
	return &observer{Client: c, tasks: map[string]span{}}
}

// watch a task from the moment that Proxmox has named it: the time before is the
// call's, and counts against us.
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
			time.Sleep(glance)
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.tasks[task.Kind()] = span{began, time.Now()}
	})
	return task, nil
}

// criticalPath is the least that Proxmox's tasks allow: the boot drive is uploaded
// while the clone runs, the rest follows one after the other. A start that was asked
// for while the disk still grew has waited for that, which counts once.
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
