// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Fork starts a task for a request. The worker starts some time after the response, so Proxmox accepts two clones to
// one VMID.
func (k *Kernel) Fork(r *api.Request, typ, id string, work tasks.Work) *tasks.Task {
	return k.Tasks.Start(r.Host, typ, id, r.Who.String(), func(ctx context.Context, t *tasks.Task) error {
		if err := k.Clock.Sleep(ctx, forkTime); err != nil {
			return err
		}
		return work(ctx, t)
	})
}

// TaskResponse returns the response of a call that started a task.
func TaskResponse(t *tasks.Task) api.Response { return api.Response{Data: t.UPID.String()} }

// WaitForTask waits for a task for at most the number of seconds in a parameter of the request. If the task ends in
// time, the response is its result, otherwise its UPID.
func (k *Kernel) WaitForTask(ctx context.Context, r *api.Request, t *tasks.Task, param string) (api.Response, error) {
	delay := r.Int(param, 0)
	if delay <= 0 {
		return TaskResponse(t), nil
	}
	timer := time.NewTimer(k.Clock.Real(time.Duration(delay) * time.Second))
	defer timer.Stop()
	select {
	case <-t.Done():
		if s := t.State(); s.Exit != "OK" && !strings.HasPrefix(s.Exit, "WARNINGS") {
			return api.Response{}, api.Failf("%s", s.Exit)
		}
		return api.Response{}, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return TaskResponse(t), nil
}
