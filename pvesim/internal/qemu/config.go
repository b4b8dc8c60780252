// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (c *configs) getConfig(_ context.Context, r *api.Request) (api.Response, error) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	options := g.Config.Merged()
	if r.Bool("current") {
		options = g.Config.Options
	}
	if name, ok := r.Value("snapshot"); ok {
		s := g.Config.Snapshot(name)
		if s == nil {
			return api.Response{}, api.Failf("snapshot '%s' does not exist", name)
		}
		options = s.Options
	}
	out := api.Row{"digest": g.Config.Digest()}
	for k, v := range options {
		out[k] = c.jsonValue(k, v)
	}
	if _, ok := out["cipassword"]; ok {
		out["cipassword"] = hiddenPassword
	}
	if g.Config.Parent != "" {
		out["parent"] = g.Config.Parent
	}
	return api.Response{Data: out}, nil
}

func (c *configs) getPending(_ context.Context, r *api.Request) (api.Response, error) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	keys := map[string]bool{"digest": true}
	for k := range g.Config.Options {
		keys[k] = true
	}
	for k := range g.Config.Pending {
		keys[k] = true
	}
	rows := []api.Row{}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		out := api.Row{"key": k}
		if k == "digest" {
			out["value"] = g.Config.Digest()
		}
		if v, ok := g.Config.Options[k]; ok {
			out["value"] = c.displayValue(k, v)
		}
		if v, ok := g.Config.Pending[k]; ok {
			out["pending"] = c.displayValue(k, v)
		}
		if g.Config.Deleted[k] {
			out["delete"] = 1
		}
		rows = append(rows, out)
	}
	return api.Response{Data: rows}, nil
}

// putConfig changes the config synchronously. It waits up to ten seconds for the lock of the VM.
func (c *configs) putConfig(ctx context.Context, r *api.Request) (api.Response, error) {
	u, err := c.prepareUpdate(r)
	if err != nil {
		return api.Response{}, err
	}
	if c.k.Version.EarlyLockCheck {
		if err := c.checkState(r.Host, r.VMID, u); err != nil {
			return api.Response{}, err
		}
	}
	release, err := c.k.LockGuest(ctx, nil, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return api.Response{}, api.Failf("%v", err)
	}
	defer release()
	if err := c.checkState(r.Host, r.VMID, u); err != nil {
		return api.Response{}, err
	}
	return api.Response{}, c.applyUpdate(ctx, nil, r, u)
}

// postConfig changes the config in a task.
func (c *configs) postConfig(ctx context.Context, r *api.Request) (api.Response, error) {
	u, err := c.prepareUpdate(r)
	if err != nil {
		return api.Response{}, err
	}
	if err := c.checkState(r.Host, r.VMID, u); err != nil {
		return api.Response{}, err
	}
	t := c.k.Fork(r, "qmconfig", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		release, err := c.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		if err := c.checkState(r.Host, r.VMID, u); err != nil {
			return err
		}
		t.Logf("update VM %d:%s", r.VMID, u.logText)
		return c.applyUpdate(ctx, t, r, u)
	})
	return c.k.WaitForTask(ctx, r, t, "background_delay")
}

// putUnlink detaches disks, and deletes them with force.
func (c *configs) putUnlink(ctx context.Context, r *api.Request) (api.Response, error) {
	r.Params.Values["delete"] = r.Params.Values["idlist"]
	delete(r.Params.Values, "idlist")
	return c.putConfig(ctx, r)
}
