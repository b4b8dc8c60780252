// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// suspendedLock is the "lock:" key of a VM that was suspended to disk.
const suspendedLock = "suspended"

// postSuspend pauses a VM or, with "todisk", saves its memory and stops it.
func (h *handlers) postSuspend(ctx context.Context, r *api.Request) (api.Response, error) {
	if !r.Bool("todisk") {
		return h.runningVMTask("qmpause", func(g *kernel.Guest) { setPaused(g, true) })(ctx, r)
	}
	return h.runningVMTask("qmsuspend", func(g *kernel.Guest) {
		h.Off(g)
		g.Config.Options["lock"] = suspendedLock
	})(ctx, r)
}

// postResume continues a paused VM. A VM that was suspended to disk starts; its guest boots, because the simulator does
// not save memory.
func (h *handlers) postResume(ctx context.Context, r *api.Request) (api.Response, error) {
	h.k.Mu.Lock()
	g := h.k.FindVM(r.Host, r.VMID)
	suspended := g != nil && g.Config.Lock() == suspendedLock
	h.k.Mu.Unlock()
	if suspended {
		return kernel.TaskResponse(h.k.ForkVM(r, "qmresume", func(ctx context.Context, t *tasks.Task) error { return h.Start(ctx, t, r) }))
	}
	return h.runningVMTask("qmresume", func(g *kernel.Guest) { setPaused(g, false) })(ctx, r)
}

func setPaused(g *kernel.Guest, paused bool) {
	g.Paused = paused
	g.Instance.NotifyUpdated()
}
