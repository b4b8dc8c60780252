// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ha is the HA manager. It brings the VMs that it manages into their desired state.
package ha

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/collection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Power starts and stops VMs for the HA manager.
type Power interface {
	// Start is the worker of a start task.
	Start(ctx context.Context, t *tasks.Task, host string, vmid int, skipLock bool) error
	// Shutdown is the worker of a shutdown task that cuts the power if the guest does not stop in time.
	Shutdown(ctx context.Context, t *tasks.Task, r *api.Request, timeout time.Duration) error
}

// Manager is the HA manager with its resources, rules and groups.
type Manager struct {
	// Power is set before the first call.
	Power Power

	k         *kernel.Kernel
	resources map[string]map[string]string // by ID, "vm:100"
	rules     *collection.Collection
	groups    *collection.Collection
}

// New returns a manager without resources.
func New(k *kernel.Kernel) *Manager {
	return &Manager{
		k: k, resources: map[string]map[string]string{},
		rules: collection.New(k, "rule", "HA rule", nil), groups: collection.New(k, "group", "HA group", nil),
	}
}

// States of a resource that the simulator interprets.
const (
	stateStarted = "started"
	stateIgnored = "ignored"
)

func resourceID(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

// IsManaged reports whether HA controls a VM. It does not control resources in the state "ignored".
func (m *Manager) IsManaged(vmid int) bool {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	res := m.resources[resourceID(vmid)]
	return res != nil && res["state"] != stateIgnored
}

// StatusRow returns the HA state of a VM for its status. The caller holds the mutex.
func (m *Manager) StatusRow(vmid int) api.Row {
	res := m.resources[resourceID(vmid)]
	if res == nil {
		return api.Row{"managed": 0}
	}
	out := api.Row{"managed": 1, "state": nil}
	if !m.k.Version.HAGroupsMigrated {
		out["group"] = nil
	}
	return out
}

// RequestState returns the response to a start or stop of a VM that HA manages: a task that only records the desired
// state. The HA manager acts later.
func (m *Manager) RequestState(r *api.Request, verb, state string) api.Response {
	t := m.k.Fork(r, "ha"+verb, strconv.Itoa(r.VMID), func(_ context.Context, t *tasks.Task) error {
		t.Logf("Requesting HA %s for VM %d", verb, r.VMID)
		m.k.Mu.Lock()
		if res := m.resources[resourceID(r.VMID)]; res != nil {
			res["state"] = state
		}
		m.k.Mu.Unlock()
		m.Reconcile(r.VMID)
		return nil
	})
	return kernel.TaskResponse(t)
}

// Reconcile brings a VM into its desired state after a delay, as root@pam. It does not block.
func (m *Manager) Reconcile(vmid int) {
	m.k.Go(func() {
		if m.k.Clock.Sleep(m.k.Context(), 5*time.Second) != nil {
			return
		}
		m.k.Mu.Lock()
		g, res := m.k.Guests[vmid], m.resources[resourceID(vmid)]
		if g == nil || res == nil || res["state"] == stateIgnored || g.IsRunning() == (res["state"] == stateStarted) {
			m.k.Mu.Unlock()
			return
		}
		start, root := !g.IsRunning(), &api.Request{Who: access.Identity{User: access.Root}, Host: g.Host, VMID: vmid}
		m.k.Mu.Unlock()
		if start {
			m.k.Fork(root, "qmstart", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
				return m.Power.Start(ctx, t, root.Host, vmid, false)
			})
			return
		}
		m.k.Fork(root, "qmshutdown", strconv.Itoa(vmid), func(ctx context.Context, t *tasks.Task) error {
			return m.Power.Shutdown(ctx, t, root, time.Minute)
		})
	})
}

// SetHA sets the desired state of a VM. An empty state removes the VM from HA.
func (m *Manager) SetHA(vmid int, state string) error {
	m.k.Mu.Lock()
	if m.k.Guests[vmid] == nil {
		m.k.Mu.Unlock()
		return api.Failf("unable to find VM %d", vmid)
	}
	if state == "" {
		delete(m.resources, resourceID(vmid))
	} else {
		m.resources[resourceID(vmid)] = map[string]string{"state": state}
	}
	m.k.Mu.Unlock()
	m.Reconcile(vmid)
	return nil
}

// State returns the desired state of a VM, and whether HA has the VM as a resource. The caller holds the mutex.
func (m *Manager) State(vmid int) (string, bool) {
	res, ok := m.resources[resourceID(vmid)]
	return res["state"], ok
}

// Remove removes a VM from HA and reports whether it was a resource. The caller holds the mutex.
func (m *Manager) Remove(vmid int) bool {
	_, ok := m.resources[resourceID(vmid)]
	delete(m.resources, resourceID(vmid))
	return ok
}

// HAState returns the desired state of a VM, and whether HA has the VM as a resource.
func (m *Manager) HAState(vmid int) (string, bool) {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	return m.State(vmid)
}
