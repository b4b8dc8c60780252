// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (c *configs) getConfig(r *api.Request, g *kernel.Guest) (any, error) {
	options := g.Config.Merged()
	if r.Bool("current") {
		options = g.Config.Options
	}
	if name, ok := r.Value("snapshot"); ok {
		s := g.Config.Snapshot(name)
		if s == nil {
			return nil, api.Failf("snapshot '%s' does not exist", name)
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
	api.SetNonEmpty(out, "parent", g.Config.Parent)
	return out, nil
}

func (c *configs) getPending(_ *api.Request, g *kernel.Guest) (any, error) {
	keys := map[string]string{"digest": ""}
	maps.Copy(keys, g.Config.Options)
	maps.Copy(keys, g.Config.Pending)
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
	return rows, nil
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
	t := c.k.ForkVM(r, "qmconfig", func(ctx context.Context, t *tasks.Task) error {
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

func (ci *cloudInit) getCloudInit(_ *api.Request, g *kernel.Guest) (any, error) {
	rows := []api.Row{}
	for _, key := range strings.Fields("cicustom cipassword citype ciupgrade ciuser nameserver searchdomain sshkeys") {
		if v, ok := g.Config.Options[key]; ok {
			rows = append(rows, api.Row{"key": key, "value": ci.displayValue(key, v)})
		}
	}
	return rows, nil
}

func (ci *cloudInit) putCloudInit(ctx context.Context, r *api.Request) (api.Response, error) {
	release, err := ci.k.LockGuest(ctx, nil, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return api.Response{}, api.Failf("%v", err)
	}
	defer release()
	ci.k.Mu.Lock()
	defer ci.k.Mu.Unlock()
	g := ci.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	if lock := g.Config.Lock(); lock != "" {
		return api.Response{}, api.Failf("VM is locked (%s)", lock)
	}
	return api.Response{}, cloudinit.CheckSnippets(ci.store, g)
}

// getCloudInitDump returns generated files. Like Proxmox, it ignores custom snippets.
func (ci *cloudInit) getCloudInitDump(r *api.Request, g *kernel.Guest) (any, error) {
	user, network := cloudinit.UserData(g), cloudinit.NetworkConfig(g)
	files := map[string]string{"user": user, "network": network, "meta": cloudinit.MetaData(user, network)}
	return files[r.Params.Values["type"]], nil
}

func (sn *snapshots) getSnapshots(_ *api.Request, g *kernel.Guest) (any, error) {
	rows := []api.Row{}
	for _, s := range g.Config.Snapshots {
		out := api.Row{"name": s.Name, "description": s.Description, "snaptime": s.Time, "vmstate": 0}
		api.SetNonEmpty(out, "parent", s.Parent)
		rows = append(rows, out)
	}
	current := api.Row{"name": "current", "description": "You are here!", "running": api.BoolInt(g.IsRunning()), "digest": g.Config.Digest()}
	api.SetNonEmpty(current, "parent", g.Config.Parent)
	return append(rows, current), nil
}

func (sn *snapshots) postSnapshot(_ context.Context, r *api.Request) (api.Response, error) {
	name := r.Params.Values["snapname"]
	if name == "current" {
		return api.Response{}, api.Failf("unable to use snapshot name 'current' (reserved name)")
	}
	return sn.lockedTask(r, "qmsnapshot", func(t *tasks.Task, g *kernel.Guest) error {
		if g.Config.Snapshot(name) != nil {
			return api.Failf("snapshot name '%s' already used", name)
		}
		for _, d := range qm.VolumeDrives(g.Config.Options) {
			if !d.IsCDROM() {
				t.Logf("snapshotting 'drive-%s' (%s)", d.Key, d.File)
			}
		}
		g.Config.Snapshots = append(g.Config.Snapshots, qm.Snapshot{
			Name: name, Description: r.Params.Values["description"], Parent: g.Config.Parent, Time: sn.k.Clock.Now().Unix(),
			Options: maps.Clone(g.Config.Options),
		})
		g.Config.Parent = name
		return nil
	})
}

func (sn *snapshots) deleteSnapshot(_ context.Context, r *api.Request) (api.Response, error) {
	name := r.Params.Values["snapname"]
	return sn.lockedTask(r, "qmdelsnapshot", func(_ *tasks.Task, g *kernel.Guest) error {
		s := g.Config.Snapshot(name)
		if s == nil {
			return api.Failf("snapshot '%s' does not exist", name)
		}
		if g.Config.Parent == name {
			g.Config.Parent = s.Parent
		}
		g.Config.Snapshots = slices.DeleteFunc(g.Config.Snapshots, func(x qm.Snapshot) bool { return x.Name == name })
		return nil
	})
}

func (sn *snapshots) postRollback(_ context.Context, r *api.Request) (api.Response, error) {
	name := r.Params.Values["snapname"]
	return sn.lockedTask(r, "qmrollback", func(_ *tasks.Task, g *kernel.Guest) error {
		s := g.Config.Snapshot(name)
		if s == nil {
			return api.Failf("snapshot '%s' does not exist", name)
		}
		if g.IsRunning() {
			sn.power.Off(g)
		}
		g.Config.Options = maps.Clone(s.Options)
		g.Config.Parent = name
		return nil
	})
}

func (sn *snapshots) getSnapshotConfig(r *api.Request, g *kernel.Guest) (any, error) {
	s := g.Config.Snapshot(r.Params.Values["snapname"])
	if s == nil {
		return nil, api.Failf("snapshot '%s' does not exist", r.Params.Values["snapname"])
	}
	out := api.Row{"snaptime": s.Time, "description": s.Description}
	for k, v := range s.Options {
		out[k] = sn.jsonValue(k, v)
	}
	return out, nil
}
