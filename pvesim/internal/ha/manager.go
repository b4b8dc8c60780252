// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ha is the HA manager: it brings the VMs that it manages into their desired state.
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

// Manager is the HA manager: the resources that it manages, and their rules and groups.
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

// The states that matter here.
const (
	haStarted = "started"
	haIgnored = "ignored"
)

func haID(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

// Managed tells whether HA is in charge of a VM: one that it is to ignore is not.
func (m *Manager) Managed(vmid int) bool {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	res := m.resources[haID(vmid)]
	return res != nil && res["state"] != haIgnored
}

func (m *Manager) Status(vmid int) api.Row {
	res := m.resources[haID(vmid)]
	if res == nil {
		return api.Row{"managed": 0}
	}
	out := api.Row{"managed": 1, "state": nil}
	if !m.k.Version.HAGroupsMigrated {
		out["group"] = nil
	}
	return out
}

// Request only asks: the HA manager acts on its next rounds.
func (m *Manager) Request(r *api.Request, verb, state string) api.Response {
	t := m.k.Fork(r, "ha"+verb, strconv.Itoa(r.VMID), func(_ context.Context, t *tasks.Task) error {
		t.Logf("Requesting HA %s for VM %d", verb, r.VMID)
		m.k.Mu.Lock()
		if res := m.resources[haID(r.VMID)]; res != nil {
			res["state"] = state
		}
		m.k.Mu.Unlock()
		m.Follow(r.VMID)
		return nil
	})
	return kernel.TaskResponse(t)
}

// Follow lets the manager bring a VM into its wanted state some seconds later, in root's name.
func (m *Manager) Follow(vmid int) {
	m.k.Go(func() {
		if m.k.Clock.Sleep(m.k.Context(), 5*time.Second) != nil {
			return
		}
		m.k.Mu.Lock()
		g, res := m.k.Guests[vmid], m.resources[haID(vmid)]
		if g == nil || res == nil || res["state"] == haIgnored || g.Running() == (res["state"] == haStarted) {
			m.k.Mu.Unlock()
			return
		}
		start, root := !g.Running(), &api.Request{Who: access.Identity{User: access.Root}, Host: g.Host, VMID: vmid}
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

// SetHA puts a VM under HA with a wanted state, or with "" takes it out.
func (m *Manager) SetHA(vmid int, state string) error {
	m.k.Mu.Lock()
	if m.k.Guests[vmid] == nil {
		m.k.Mu.Unlock()
		return api.Failf("unable to find VM %d", vmid)
	}
	if state == "" {
		delete(m.resources, haID(vmid))
	} else {
		m.resources[haID(vmid)] = map[string]string{"state": state}
	}
	m.k.Mu.Unlock()
	m.Follow(vmid)
	return nil
}

// State is the desired state of a VM; false when HA does not manage it. The caller holds the mutex.
func (m *Manager) State(vmid int) (string, bool) {
	res, ok := m.resources[haID(vmid)]
	return res["state"], ok
}

// Remove drops a VM from HA and reports whether it was there. The caller holds the mutex.
func (m *Manager) Remove(vmid int) bool {
	_, ok := m.resources[haID(vmid)]
	delete(m.resources, haID(vmid))
	return ok
}

// HAState is the wanted state of a VM; false when HA does not know it.
func (m *Manager) HAState(vmid int) (string, bool) {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	return m.State(vmid)
}
