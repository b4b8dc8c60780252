// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func haID(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

func (e *Engine) haManaged(vmid int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ha[haID(vmid)] != nil
}

func (e *Engine) haStatus(vmid int) row {
	res := e.ha[haID(vmid)]
	if res == nil {
		return row{"managed": 0}
	}
	out := row{"managed": 1, "state": nil}
	if !e.Version.HAGroupsMigrated {
		out["group"] = nil
	}
	return out
}

// haRequest only asks: the HA manager acts on its next rounds.
func (e *Engine) haRequest(r *Request, verb, state string) Response {
	t := e.fork(r, "ha"+verb, strconv.Itoa(r.vmid), func(_ context.Context, t *tasks.Task) error {
		t.Logf("Requesting HA %s for VM %d", verb, r.vmid)
		e.mu.Lock()
		if res := e.ha[haID(r.vmid)]; res != nil {
			res["state"] = state
		}
		e.mu.Unlock()
		e.haFollow(r.host, r.vmid, state)
		return nil
	})
	return upid(t)
}

// haFollow lets the manager carry out a request some seconds later, in root's name.
func (e *Engine) haFollow(host string, vmid int, state string) {
	root := &Request{Who: access.Identity{User: access.Root}, host: host, vmid: vmid}
	e.group.Go(func() {
		if e.Clock.Sleep(e.ctx, 5*time.Second) != nil {
			return
		}
		if state == "started" {
			e.fork(root, "qmstart", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
				return e.startVM(ctx, t, host, vmid, false)
			})
			return
		}
		e.fork(root, "qmshutdown", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
			return e.stopVM(ctx, t, root, stopOptions{ask: true, force: true, timeout: time.Minute})
		})
	})
}
