// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

func (sn *snapshots) getSnapshots(_ context.Context, r *api.Request) (api.Response, error) {
	sn.k.Mu.Lock()
	defer sn.k.Mu.Unlock()
	g := sn.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	rows := []api.Row{}
	for _, s := range g.Config.Snapshots {
		out := api.Row{"name": s.Name, "description": s.Description, "snaptime": s.Time, "vmstate": 0}
		if s.Parent != "" {
			out["parent"] = s.Parent
		}
		rows = append(rows, out)
	}
	current := api.Row{"name": "current", "description": "You are here!", "running": api.BoolInt(g.IsRunning()), "digest": g.Config.Digest()}
	if g.Config.Parent != "" {
		current["parent"] = g.Config.Parent
	}
	return api.Response{Data: append(rows, current)}, nil
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
		for _, key := range qm.DriveKeys(g.Config.Options) {
			if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && !d.IsCDROM() && d.HasVolume() {
				t.Logf("snapshotting 'drive-%s' (%s)", key, d.File)
			}
		}
		g.Config.Snapshots = append(g.Config.Snapshots, qm.Snapshot{
			Name: name, Description: r.Params.Values["description"], Parent: g.Config.Parent, Time: sn.k.Clock.Now().Unix(),
			Options: maps.Clone(g.Config.Options),
		})
		g.Config.Parent = name
		return nil
	}), nil
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
	}), nil
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
	}), nil
}

func (sn *snapshots) getSnapshotConfig(_ context.Context, r *api.Request) (api.Response, error) {
	sn.k.Mu.Lock()
	defer sn.k.Mu.Unlock()
	g := sn.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	s := g.Config.Snapshot(r.Params.Values["snapname"])
	if s == nil {
		return api.Response{}, api.Failf("snapshot '%s' does not exist", r.Params.Values["snapname"])
	}
	out := api.Row{"snaptime": s.Time, "description": s.Description}
	for k, v := range s.Options {
		out[k] = sn.jsonValue(k, v)
	}
	return api.Response{Data: out}, nil
}
