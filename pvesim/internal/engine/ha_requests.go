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

// The states that matter here.
const (
	haStarted = "started"
	haIgnored = "ignored"
)

func haID(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

// haManaged tells whether HA is in charge of a VM: one that it is to ignore is not.
func (e *Engine) haManaged(vmid int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	res := e.ha[haID(vmid)]
	return res != nil && res["state"] != haIgnored
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
		e.haFollow(r.vmid)
		return nil
	})
	return upid(t)
}

// haFollow lets the manager bring a VM into its wanted state some seconds later, in root's name.
func (e *Engine) haFollow(vmid int) {
	e.goBackground(func() {
		if e.Clock.Sleep(e.context(), 5*time.Second) != nil {
			return
		}
		e.mu.Lock()
		g, res := e.guests[vmid], e.ha[haID(vmid)]
		if g == nil || res == nil || res["state"] == haIgnored || g.running() == (res["state"] == haStarted) {
			e.mu.Unlock()
			return
		}
		start, root := !g.running(), &Request{Who: access.Identity{User: access.Root}, host: g.Host, vmid: vmid}
		e.mu.Unlock()
		if start {
			e.fork(root, "qmstart", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
				return e.startVM(ctx, t, root.host, vmid, false)
			})
			return
		}
		e.fork(root, "qmshutdown", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
			return e.stopVM(ctx, t, root, stopOptions{ask: true, force: true, timeout: time.Minute})
		})
	})
}

// SetHA puts a VM under HA with a wanted state, or with "" takes it out.
func (e *Engine) SetHA(vmid int, state string) error {
	e.mu.Lock()
	if e.guests[vmid] == nil {
		e.mu.Unlock()
		return failf("unable to find VM %d", vmid)
	}
	if state == "" {
		delete(e.ha, haID(vmid))
	} else {
		e.ha[haID(vmid)] = map[string]string{"state": state}
	}
	e.mu.Unlock()
	e.haFollow(vmid)
	return nil
}

// haState is the desired state of a VM; false when HA does not manage it. The caller holds the mutex.
func (e *Engine) haState(vmid int) (string, bool) {
	res, ok := e.ha[haID(vmid)]
	return res["state"], ok
}

// haRemove drops a VM from HA and reports whether it was there. The caller holds the mutex.
func (e *Engine) haRemove(vmid int) bool {
	_, ok := e.ha[haID(vmid)]
	delete(e.ha, haID(vmid))
	return ok
}

// HAState is the wanted state of a VM; false when HA does not know it.
func (e *Engine) HAState(vmid int) (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	res, ok := e.ha[haID(vmid)]
	return res["state"], ok
}
