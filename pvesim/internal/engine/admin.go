// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
)

// SetOptions sets lines of datacenter.cfg.
func (e *Engine) SetOptions(options map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.Copy(e.options, options)
}

// SetStorageFull makes allocations on a storage fail, or ends that.
func (e *Engine) SetStorageFull(id string, full bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.storage(id)
	if s == nil {
		return failf("storage '%s' does not exist", id)
	}
	s.Full = full
	return nil
}

// SetMaintenance puts a host into maintenance, as "ha-manager crm-command node-maintenance" does, or ends that.
func (e *Engine) SetMaintenance(name string, on bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.host(name)
	if h == nil {
		return failf("no such cluster node '%s'", name)
	}
	h.Maintenance = on
	return nil
}

// PowerOffGuest ends a running VM from inside.
func (e *Engine) PowerOffGuest(vmid int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[vmid]
	if g == nil || !g.running() {
		return failf("VM %d is not running", vmid)
	}
	e.powerOff(g)
	e.haFollow(vmid)
	return nil
}

// SetGuestHealth makes the guest of a running VM ill or well.
func (e *Engine) SetGuestHealth(vmid int, health string) error {
	if !slices.Contains([]string{Well, Sick, Hung}, health) {
		return failf("health %q is not one of %s, %s, %s", health, Well, Sick, Hung)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[vmid]
	if g == nil || !g.running() || g.instance == nil {
		return failf("VM %d is not running", vmid)
	}
	return g.instance.setHealth(health)
}

// SetConfigLock sets or removes the "lock:" key of a VM.
func (e *Engine) SetConfigLock(vmid int, lock string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[vmid]
	if g == nil {
		return failf("there is no VM %d", vmid)
	}
	if lock == "" {
		delete(g.Config.Options, "lock")
	} else {
		g.Config.Options["lock"] = lock
	}
	return nil
}

// HoldGuestLock takes a VM's file lock until release is called.
func (e *Engine) HoldGuestLock(ctx context.Context, host string, vmid int) (release func(), err error) {
	return e.lockGuest(ctx, nil, host, vmid, locks.Exclusive, 10*time.Second)
}

// HoldStorageLock takes the lock of a storage.
func (e *Engine) HoldStorageLock(ctx context.Context, host, storage string) (release func(), err error) {
	e.mu.Lock()
	s := e.storage(storage)
	e.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("there is no storage %s", storage)
	}
	return e.lockStorage(ctx, nil, host, s)
}
