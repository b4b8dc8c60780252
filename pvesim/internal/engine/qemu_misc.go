// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"strconv"
	"time"

	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// agent finds a running agent. Where none answers, the call blocks for the three seconds of a ping.
func (e *Engine) agent(ctx context.Context, r *Request) (*Agent, error) {
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	var in *Instance
	var err error
	switch {
	case g == nil:
		err = missingConfig(r.host, r.vmid)
	case !agentEnabled(g.Config.Options["agent"]):
		err = failf("No QEMU guest agent configured")
	case !g.running() || g.instance == nil:
		err = failf("VM %d is not running", r.vmid)
	default:
		in = g.instance
	}
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if a := in.agentState(); a != nil {
		return a, nil
	}
	if err := e.Clock.Sleep(ctx, agentTimeout); err != nil {
		return nil, err
	}
	return nil, failf("QEMU guest agent is not running")
}

// agentCall serves one command of the guest agent.
func (e *Engine) agentCall(result func(a *Agent) any) Handler {
	return func(ctx context.Context, r *Request) (Response, error) {
		a, err := e.agent(ctx, r)
		if err != nil {
			return Response{}, err
		}
		return Response{Data: row{"result": result(a)}}, nil
	}
}

func agentInterfaces(a *Agent) any {
	if a.Interfaces == nil {
		return []row{}
	}
	return a.Interfaces
}

func (e *Engine) getFeature(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	has := true
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || d.IsCDROM() || !d.HasVolume() {
			continue
		}
		switch r.Params.Values["feature"] {
		case "clone":
			has = has && e.canLink(g.Host, d.File)
		case "snapshot":
			v := e.volume(g.Host, d.File)
			has = has && v != nil && (v.Format() == "qcow2" || !e.storage(d.Storage()).kind().fileBased) && e.storage(d.Storage()).Type != "lvm"
		}
	}
	hosts := []string{}
	for _, h := range e.hosts {
		hosts = append(hosts, h.Name)
	}
	return Response{Data: row{"hasFeature": boolInt(has), "nodes": hosts}}, nil
}

func (e *Engine) getMigrate(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	local := []row{}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() || e.storage(d.Storage()).Shared {
			continue
		}
		size, _ := qm.ParseSize(d.Opts["size"])
		local = append(local, row{"volid": d.File, "size": size, "cdrom": boolInt(d.IsCDROM())})
	}
	return Response{Data: row{"running": boolInt(g.running()), "local_disks": local, "local_resources": []string{}, "mapped-resources": []string{}}}, nil
}

func (e *Engine) getSnapshots(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	rows := []row{}
	for _, s := range g.Config.Snapshots {
		out := row{"name": s.Name, "description": s.Description, "snaptime": s.Time, "vmstate": 0}
		if s.Parent != "" {
			out["parent"] = s.Parent
		}
		rows = append(rows, out)
	}
	current := row{"name": "current", "description": "You are here!", "running": boolInt(g.running()), "digest": g.Config.Digest()}
	if g.Config.Parent != "" {
		current["parent"] = g.Config.Parent
	}
	return Response{Data: append(rows, current)}, nil
}

// lockedTask runs a short change of a VM's config in a task under the VM's lock.
func (e *Engine) lockedTask(r *Request, typ string, change func(t *tasks.Task, g *Guest) error) Response {
	return upid(e.fork(r, typ, strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		e.mu.Lock()
		defer e.mu.Unlock()
		g := e.guestOn(r.host, r.vmid)
		if g == nil {
			return missingConfig(r.host, r.vmid)
		}
		if lock := g.Config.Lock(); lock != "" {
			return failf("VM is locked (%s)", lock)
		}
		return change(t, g)
	}))
}

func (e *Engine) postSnapshot(_ context.Context, r *Request) (Response, error) {
	name := r.Params.Values["snapname"]
	if name == "current" {
		return Response{}, failf("unable to use snapshot name 'current' (reserved name)")
	}
	return e.lockedTask(r, "qmsnapshot", func(t *tasks.Task, g *Guest) error {
		if g.Config.Snapshot(name) != nil {
			return failf("snapshot name '%s' already used", name)
		}
		for _, key := range qm.DriveKeys(g.Config.Options) {
			if d, ok := qm.ParseDrive(key, g.Config.Options[key]); ok && !d.IsCDROM() && d.HasVolume() {
				t.Logf("snapshotting 'drive-%s' (%s)", key, d.File)
			}
		}
		g.Config.Snapshots = append(g.Config.Snapshots, qm.Snapshot{
			Name: name, Description: r.Params.Values["description"], Parent: g.Config.Parent, Time: e.Clock.Now().Unix(),
			Options: maps.Clone(g.Config.Options),
		})
		g.Config.Parent = name
		return nil
	}), nil
}

func (e *Engine) deleteSnapshot(_ context.Context, r *Request) (Response, error) {
	name := r.Params.Values["snapname"]
	return e.lockedTask(r, "qmdelsnapshot", func(_ *tasks.Task, g *Guest) error {
		s := g.Config.Snapshot(name)
		if s == nil {
			return failf("snapshot '%s' does not exist", name)
		}
		if g.Config.Parent == name {
			g.Config.Parent = s.Parent
		}
		g.Config.Snapshots = slices.DeleteFunc(g.Config.Snapshots, func(x qm.Snapshot) bool { return x.Name == name })
		return nil
	}), nil
}

// putUnlink detaches disks; with force it deletes them.
func (e *Engine) putUnlink(ctx context.Context, r *Request) (Response, error) {
	r.Params.Values["delete"] = r.Params.Values["idlist"]
	delete(r.Params.Values, "idlist")
	return e.putConfig(ctx, r)
}

func (e *Engine) getHAResources(_ context.Context, _ *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rows := []row{}
	for _, sid := range slices.Sorted(maps.Keys(e.ha)) {
		rows = append(rows, e.haRow(sid))
	}
	return Response{Data: rows}, nil
}
