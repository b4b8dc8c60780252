// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// postMigrate moves a VM to another host.
func (e *Engine) postMigrate(_ context.Context, r *Request) (Response, error) {
	to := r.Params.Values["target"]
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	h := e.host(to)
	e.mu.Unlock()
	switch {
	case to == r.host:
		return Response{}, badParam("target", "target is local node.")
	case h == nil:
		return Response{}, failf("no such cluster node '%s'", to)
	case g == nil:
		return Response{}, missingConfig(r.host, r.vmid)
	case e.isRunning(g) && !r.on("online"):
		return Response{}, failf("can't migrate running VM without --online")
	}
	if err := e.checkQuorum(); err != nil {
		return Response{}, err
	}
	typ := "qmigrate"
	if e.haManaged(r.vmid) {
		typ = "hamigrate"
	}
	return upid(e.fork(r, typ, strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.migrate(ctx, t, r, to)
	})), nil
}

func (e *Engine) migrate(ctx context.Context, t *tasks.Task, r *Request, to string) error {
	release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	t.Logf("starting migration of VM %d to node '%s'", r.vmid, to)
	e.mu.Lock()
	g, local, err := e.checkMigrate(r, to)
	var took time.Duration
	if err == nil {
		g.Config.Options["lock"] = "migrate"
		took = migrationTime(g, local)
	}
	e.mu.Unlock()
	if err != nil {
		return failf("migration aborted: %v", err)
	}
	err = e.Clock.Sleep(ctx, took)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(g.Config.Options, "lock")
	if err != nil {
		return err
	}
	e.relocate(g, to)
	t.Logf("migration finished successfully")
	return nil
}

// migrationTime is what copying local disks and, if the VM runs, its memory takes.
func migrationTime(g *Guest, local []*Volume) time.Duration {
	seconds := 2.0
	for _, v := range local {
		seconds += float64(v.Size) / float64(400<<20)
	}
	if g.running() {
		seconds += float64(g.memory()) / float64(800<<20)
	}
	return time.Duration(seconds * float64(time.Second))
}

// checkMigrate finds the volumes that have to be copied. The caller holds the mutex.
func (e *Engine) checkMigrate(r *Request, to string) (*Guest, []*Volume, error) {
	g := e.guestOn(r.host, r.vmid)
	switch {
	case g == nil:
		return nil, nil, missingConfig(r.host, r.vmid)
	case g.Config.Lock() != "":
		return nil, nil, failf("VM is locked (%s)", g.Config.Lock())
	case !e.host(to).Online:
		return nil, nil, failf("Can't connect to destination address using public key")
	}
	var local []*Volume
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() || e.storage(d.Storage()).Shared {
			continue
		}
		v := e.volume(g.Host, d.File)
		switch {
		case v == nil || v.Content() != "images":
			return nil, nil, failf("can't migrate '%s' - local cdrom", d.File)
		case v.Base != "":
			return nil, nil, failf("can't migrate local disk '%s' as it's a clone of '%s:%s'", d.File, v.Storage, v.Base)
		case g.running() && !r.on("with-local-disks") && !d.IsCloudInit():
			return nil, nil, failf("can't live migrate attached local disks without with-local-disks option")
		case !e.storage(d.Storage()).availableOn(to):
			return nil, nil, failf("storage '%s' is not available on node '%s'", d.Storage(), to)
		}
		local = append(local, v)
	}
	return g, local, nil
}

// relocate puts a VM and its local volumes onto another host. The caller holds the mutex.
func (e *Engine) relocate(g *Guest, to string) {
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() {
			continue
		}
		v := e.volume(g.Host, d.File)
		if v == nil || v.Host == "" || v.Content() != "images" {
			continue
		}
		e.removeVolume(g.Host, d.File)
		v.Host = to
		e.putVolume(v)
	}
	g.Host = to
}

// MigrateGuest moves a VM at once, as an admin's migration looks from outside.
func (e *Engine) MigrateGuest(vmid int, to string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[vmid]
	switch {
	case g == nil:
		return failf("there is no VM %d", vmid)
	case e.host(to) == nil:
		return failf("no such cluster node '%s'", to)
	}
	e.relocate(g, to)
	return nil
}

// RestoreCopy makes a VM as restoring a backup of another one does: new VMID and volumes, but the same uuid, description,
// tags and addresses.
func (e *Engine) RestoreCopy(vmid, newid int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guests[vmid]
	switch {
	case g == nil:
		return failf("there is no VM %d", vmid)
	case e.guests[newid] != nil:
		return failf("VM %d already exists", newid)
	}
	options := maps.Clone(g.Config.Options)
	delete(options, "lock")
	for _, key := range qm.DriveKeys(options) {
		d, ok := qm.ParseDrive(key, options[key])
		v := e.volume(g.Host, d.File)
		if !ok || v == nil || v.Content() != "images" {
			continue
		}
		s := e.storage(v.Storage)
		name := e.freeName(allocation{host: g.Host, storage: s, owner: newid, format: v.Format()})
		if d.IsCloudInit() {
			name = s.volumeName(newid, "cloudinit", "qcow2")
		}
		e.putVolume(&Volume{Storage: s.ID, Host: v.Host, Name: name, Size: v.Size, Used: v.Used, Owner: newid, Disk: v.Disk.copy()})
		d.File = s.ID + ":" + name
		options[key] = d.String()
	}
	e.guests[newid] = &Guest{VMID: newid, Type: "qemu", Host: g.Host, Config: qm.New(options)}
	return nil
}

// postMoveDisk copies a disk to another storage.
func (e *Engine) postMoveDisk(_ context.Context, r *Request) (Response, error) {
	to := r.Params.Values["storage"]
	if r.Params.Values["target-vmid"] != "" || to == "" {
		return Response{}, failf("moving a disk to another VM is not part of the simulator")
	}
	if err := e.need(r, "/storage/"+to, "Datastore.AllocateSpace"); err != nil {
		return Response{}, err
	}
	return upid(e.fork(r, "qmmove", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		return e.moveDisk(ctx, t, r, to)
	})), nil
}

func (e *Engine) moveDisk(ctx context.Context, t *tasks.Task, r *Request, to string) error {
	key := r.Params.Values["disk"]
	e.mu.Lock()
	g := e.guestOn(r.host, r.vmid)
	s, err := e.checkStorage(to, r.host)
	var d qm.Drive
	var from *Volume
	switch {
	case err != nil:
	case g == nil:
		err = missingConfig(r.host, r.vmid)
	case g.Config.Lock() != "":
		err = failf("VM is locked (%s)", g.Config.Lock())
	case g.Config.Options[key] == "":
		err = failf("disk '%s' does not exist", key)
	default:
		d, _ = qm.ParseDrive(key, g.Config.Options[key])
		if from = e.volume(r.host, d.File); from == nil {
			err = failf("disk '%s' has no associated volume", key)
		}
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	t.Logf("create full clone of drive %s (%s)", key, d.File)
	format := r.Params.Values["format"]
	if format == "" && s.kind().fileBased {
		format = from.Format()
	}
	v, err := e.allocate(ctx, t, allocation{host: r.host, storage: s, owner: r.vmid, format: format, size: from.Size})
	if err != nil {
		return failf("storage migration failed: %v", err)
	}
	if err := e.copyVolume(ctx, t, s, from, v); err != nil {
		e.discard(r.host, []string{v.ID()})
		return failf("storage migration failed: %v", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	old := g.Config.Options[key]
	d.File = v.ID()
	g.Config.Options[key] = d.String()
	e.releaseDrive(g, key, old, d.String(), r.on("delete"))
	return nil
}

func (e *Engine) postRollback(_ context.Context, r *Request) (Response, error) {
	name := r.Params.Values["snapname"]
	return e.lockedTask(r, "qmrollback", func(_ *tasks.Task, g *Guest) error {
		s := g.Config.Snapshot(name)
		if s == nil {
			return failf("snapshot '%s' does not exist", name)
		}
		if g.running() {
			e.powerOff(g)
		}
		g.Config.Options = maps.Clone(s.Options)
		g.Config.Parent = name
		return nil
	}), nil
}

func (e *Engine) getSnapshotConfig(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	s := g.Config.Snapshot(r.Params.Values["snapname"])
	if s == nil {
		return Response{}, failf("snapshot '%s' does not exist", r.Params.Values["snapname"])
	}
	out := row{"snaptime": s.Time, "description": s.Description}
	for k, v := range s.Options {
		out[k] = e.typed(k, v)
	}
	return Response{Data: out}, nil
}

func (e *Engine) getInterface(ctx context.Context, r *Request) (Response, error) {
	resp, err := e.getNetwork(ctx, r)
	if err != nil {
		return resp, err
	}
	rows, _ := resp.Data.([]row)
	for _, out := range rows {
		if out["iface"] == r.Params.Values["iface"] {
			return Response{Data: out}, nil
		}
	}
	return Response{}, badParam("iface", "interface does not exist")
}

func (e *Engine) putDefinition(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.storage(r.Params.Values["storage"])
	if s == nil {
		return Response{}, failf("update storage failed: storage '%s' does not exist", r.Params.Values["storage"])
	}
	if v, ok := r.value("content"); ok {
		s.Content = strings.FieldsFunc(v, func(c rune) bool { return c == ',' || c == ' ' })
	}
	if _, ok := r.value("disable"); ok {
		s.Disabled = r.on("disable")
	}
	return Response{Data: row{"storage": s.ID, "type": s.Type}}, nil
}

func (e *Engine) deleteDefinition(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := r.Params.Values["storage"]
	for i, s := range e.allStorages() {
		if s.ID == id {
			e.definitions = append(e.definitions[:i:i], e.definitions[i+1:]...)
			return Response{}, nil
		}
	}
	return Response{}, failf("delete storage failed: storage '%s' does not exist", id)
}

// putSDN applies pending changes of the software-defined network; the simulator has none, so the task is short.
func (e *Engine) putSDN(_ context.Context, r *Request) (Response, error) {
	serving := e.Serving()
	if serving == nil {
		return Response{}, failf("no host is up")
	}
	r.host = serving.Name
	return upid(e.fork(r, "reloadnetworkall", "", func(_ context.Context, t *tasks.Task) error {
		t.Logf("%s: reloading network config", fmt.Sprint(serving.Name))
		return nil
	})), nil
}
