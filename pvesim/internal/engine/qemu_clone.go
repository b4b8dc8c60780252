// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// cloneJob is a clone after its checks.
type cloneJob struct {
	source, newid int
	host, target  string
	storage       string
	format        string
	full          bool
	pool          string
	options       map[string]string // the new config, still with the source's drives
	drives        []qm.Drive        // in the order in which they are copied
	running       bool
}

func (e *Engine) postClone(_ context.Context, r *Request) (Response, error) {
	if _, err := e.checkClone(r); err != nil {
		return Response{}, err
	}
	t := e.fork(r, "qmclone", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		return e.clone(ctx, t, r)
	})
	return upid(t), nil
}

// checkClone runs the checks of clone. They run twice: before the answer, and in the task under the locks.
func (e *Engine) checkClone(r *Request) (*cloneJob, error) {
	job := &cloneJob{
		source: r.vmid, newid: r.integer("newid", 0), host: r.host, target: r.Params.Values["target"],
		storage: r.Params.Values["storage"], format: r.Params.Values["format"], pool: r.Params.Values["pool"],
	}
	if job.target == job.host || job.target == "localhost" {
		job.target = ""
	}
	if job.pool != "" && !e.poolExists(job.pool) {
		return nil, denied(fmt.Sprintf("pool '%s' does not exist", job.pool))
	}
	if err := e.checkCloneTarget(job); err != nil {
		return nil, err
	}
	if err := e.checkQuorum(); err != nil {
		return nil, err
	}
	config, err := e.cloneSource(r, job)
	if err != nil {
		return nil, err
	}
	shared, err := e.checkCloneStorage(r, job, config)
	if err != nil {
		return nil, err
	}
	if err := e.checkBridges(r, config); err != nil {
		return nil, err
	}
	if err := e.checkMappings(r, config); err != nil {
		return nil, err
	}
	if job.target != "" && !shared {
		return nil, failf("can't clone VM to node '%s' (VM uses local storage)", job.target)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.guests[job.newid] != nil {
		return nil, failf("unable to create VM %d: config file already exists", job.newid)
	}
	return job, e.planDrives(job, config)
}

func (e *Engine) checkCloneTarget(job *cloneJob) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if job.target != "" && e.host(job.target) == nil {
		return failf("no such cluster node '%s'", job.target)
	}
	if job.storage == "" {
		return nil
	}
	s, err := e.checkStorage(job.storage, job.host)
	if err != nil {
		return err
	}
	if job.target == "" {
		return nil
	}
	if _, err := e.checkStorage(job.storage, job.target); err != nil {
		return err
	}
	if !s.Shared {
		return failf("can't clone to non-shared storage '%s'", job.storage)
	}
	return nil
}

// cloneSource loads the source and settles whether the clone is linked or full.
func (e *Engine) cloneSource(r *Request, job *cloneJob) (map[string]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(job.host, job.source)
	if g == nil {
		return nil, failf("unable to find configuration file for VM %d on node '%s'", job.source, job.host)
	}
	if lock := g.Config.Lock(); lock != "" {
		return nil, failf("VM is locked (%s)", lock)
	}
	job.running = g.running()
	config := g.Config.Options
	if snap, ok := r.value("snapname"); ok {
		s := g.Config.Snapshot(snap)
		if s == nil {
			return nil, failf("snapshot '%s' does not exist", snap)
		}
		config = s.Options
	}
	job.full = !g.Config.IsTemplate()
	if _, given := r.value("full"); given {
		job.full = r.on("full")
	}
	for _, param := range []string{"storage", "format"} {
		if _, given := r.value(param); given && !job.full {
			return nil, failf("parameter '%s' not allowed for linked clones", param)
		}
	}
	return e.cloneOptions(r, job, config), nil
}

// cloneOptions is the new VM's config: everything that the source has, root-only options too, but a new identity.
func (e *Engine) cloneOptions(r *Request, job *cloneJob, config map[string]string) map[string]string {
	options := map[string]string{}
	for key, v := range config {
		switch {
		case strings.HasPrefix(key, "unused"), key == "template", key == "lock", key == "vmstate", key == "parent":
		case qm.IsNetKey(key):
			n := qm.ParseNet(v)
			n.MAC = qm.RandomMAC(e.options["mac_prefix"])
			options[key] = n.String()
		default:
			options[key] = v
		}
	}
	options["smbios1"] = qm.WithNewUUID(options["smbios1"])
	if options["vmgenid"] != "" {
		options["vmgenid"] = uuid.NewString()
	}
	options["name"] = r.Params.Values["name"]
	if options["name"] == "" {
		options["name"] = "Copy-of-VM-" + cmp.Or(config["name"], strconv.Itoa(job.source))
	}
	if d, ok := r.value("description"); ok {
		options["description"] = d
	}
	job.options = options
	return config
}

// checkCloneStorage demands the right to allocate on every disk's storage and tells whether all of them are shared.
// CDs count for the second question: an ISO on local storage ties the VM to its host.
func (e *Engine) checkCloneStorage(r *Request, job *cloneJob, config map[string]string) (shared bool, err error) {
	shared = true
	for _, key := range qm.DriveKeys(config) {
		d, ok := qm.ParseDrive(key, config[key])
		if !ok || !d.HasVolume() {
			continue
		}
		e.mu.Lock()
		s := e.storage(d.Storage())
		e.mu.Unlock()
		if s == nil {
			return false, failf("storage '%s' does not exist", d.Storage())
		}
		shared = shared && s.Shared
		if d.IsCDROM() && !d.IsCloudInit() {
			continue
		}
		id := s.ID
		if job.storage != "" {
			id = job.storage
		}
		if err := e.need(r, "/storage/"+id, "Datastore.AllocateSpace"); err != nil {
			return false, err
		}
	}
	return shared, nil
}

// planDrives decides for each drive how it is copied. The caller holds the mutex.
func (e *Engine) planDrives(job *cloneJob, config map[string]string) error {
	for _, key := range qm.DriveKeys(config) {
		d, ok := qm.ParseDrive(key, config[key])
		if !ok {
			return failf("unable to parse drive options for '%s'", key)
		}
		if !d.HasVolume() || (d.IsCDROM() && !d.IsCloudInit()) {
			continue
		}
		if !job.full && !d.IsCloudInit() && !e.canLink(job.host, d.File) {
			return failf("Linked clone feature is not supported for '%s' (%s)", d.File, key)
		}
		job.drives = append(job.drives, d)
		delete(job.options, key)
	}
	return nil
}

// canLink: only base volumes of storages with snapshots or backing files can have linked clones.
func (e *Engine) canLink(host, volid string) bool {
	s := e.storage(strings.SplitN(volid, ":", 2)[0])
	v := e.volume(host, volid)
	return s != nil && v != nil && s.kind().linked && strings.HasPrefix(path.Base(v.Name), "base-")
}

// clone is the worker. It holds the source's lock shared (exclusive if the source runs) and the new VM's lock
// exclusively all the while; both wait one second only.
func (e *Engine) clone(ctx context.Context, t *tasks.Task, r *Request) error {
	e.mu.Lock()
	mode := locks.Shared
	if g := e.guestOn(r.host, r.vmid); g != nil && g.running() {
		mode = locks.Exclusive
	}
	e.mu.Unlock()
	releaseSource, err := e.lockGuest(ctx, t, r.host, r.vmid, mode, time.Second)
	if err != nil {
		return err
	}
	defer releaseSource()
	releaseNew, err := e.lockGuest(ctx, t, r.host, r.integer("newid", 0), locks.Exclusive, time.Second)
	if err != nil {
		return err
	}
	defer releaseNew()
	job, err := e.checkClone(r)
	if err != nil {
		return err
	}
	g, err := e.placeholder(job)
	if err != nil {
		return err
	}
	if e.Version.CloneAnnounced {
		t.Logf("creating a clone of VM %d with ID %d", job.source, job.newid)
	}
	made, err := e.cloneDrives(ctx, t, job, g)
	if err == nil {
		err = e.finishClone(ctx, job, g)
	}
	if err != nil {
		if !errors.Is(context.Cause(ctx), tasks.ErrPowerLost) { // else the locked config and the volumes stay behind
			e.rollBackClone(job, made)
		}
		return failf("clone failed: %v", err)
	}
	return nil
}

// placeholder is the first state of the new VM: a lock and a comment, nothing of its identity.
func (e *Engine) placeholder(job *cloneJob) (*Guest, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.guests[job.newid] != nil {
		return nil, failf("unable to create VM %d: config file already exists", job.newid)
	}
	g := &Guest{VMID: job.newid, Type: "qemu", Host: job.host}
	g.Config = qm.New(map[string]string{"lock": "clone", "description": " qmclone temporary file"})
	e.guests[job.newid] = g
	return g, nil
}

// cloneDrives copies the drives in order. After each one the whole config is written, still locked.
func (e *Engine) cloneDrives(ctx context.Context, t *tasks.Task, job *cloneJob, g *Guest) (made []string, err error) {
	for _, d := range job.drives {
		v, err := e.cloneDrive(ctx, t, job, d)
		if v != nil {
			made = append(made, v.ID())
		}
		if err != nil {
			return made, err
		}
		e.mu.Lock()
		s := e.storage(v.Storage)
		d.File = s.linkedID(v)
		if !d.IsCloudInit() {
			d.Opts["size"] = qm.FormatSize(v.Size)
		}
		delete(d.Opts, "format")
		job.options[d.Key] = d.String()
		job.options["lock"] = "clone"
		g.Config = qm.New(job.options)
		e.mu.Unlock()
	}
	return made, nil
}

func (e *Engine) cloneDrive(ctx context.Context, t *tasks.Task, job *cloneJob, d qm.Drive) (*Volume, error) {
	e.mu.Lock()
	from := e.volume(job.host, d.File)
	s := e.storage(d.Storage())
	if job.storage != "" {
		s = e.storage(job.storage)
	}
	e.mu.Unlock()
	if from == nil {
		return nil, failf("volume '%s' does not exist", d.File)
	}
	if d.IsCloudInit() {
		t.Logf("create full clone of drive %s (%s)", d.Key, d.File)
		v, err := e.allocateCloudInit(ctx, t, job.host, s, job.newid)
		if err == nil && e.Version.CloneAnnounced {
			t.Logf("allocated target volume '%s'", v.ID())
		}
		return v, err
	}
	if !job.full {
		t.Logf("create linked clone of drive %s (%s)", d.Key, d.File)
		return e.link(ctx, t, job.host, job.newid, s, from)
	}
	t.Logf("create full clone of drive %s (%s)", d.Key, d.File)
	format := job.format
	if format == "" && s.kind().fileBased {
		format = from.Format()
	}
	v, err := e.allocate(ctx, t, allocation{host: job.host, storage: s, owner: job.newid, format: format, size: from.Size})
	if err != nil {
		return nil, err
	}
	return v, e.copyVolume(ctx, t, s, from, v)
}

// link makes a linked clone under the storage's lock.
func (e *Engine) link(ctx context.Context, t *tasks.Task, host string, owner int, s *Storage, from *Volume) (*Volume, error) {
	release, err := e.lockStorage(ctx, t, host, s)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := e.Clock.Sleep(ctx, e.latencyOf(s).LinkedClone); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	a := allocation{host: host, storage: s, owner: owner, format: "qcow2", size: from.Size}
	if err := e.checkSpace(a, 0); err != nil {
		return nil, err
	}
	v := &Volume{
		Storage: s.ID, Host: host, Name: e.freeName(a), Size: from.Size, Owner: owner, Base: from.Name, Disk: from.Disk.copy(),
	}
	e.putVolume(v)
	e.logLink(t, s, from, v)
	return v, nil
}

func (e *Engine) logLink(t *tasks.Task, s *Storage, from, v *Volume) {
	if !s.kind().fileBased {
		if s.Type == "lvmthin" {
			t.Logf("  Logical volume \"%s\" created.", v.Name)
		}
		return
	}
	file := path.Base(v.Name)
	t.Logf("clone %s: images, %s, %d to %s (base=../%s)", from.Name, file, v.Owner, file, from.Name)
	shape := "cluster_size=65536 extended_l2=off"
	if e.Version.CloneAnnounced {
		shape = "cluster_size=131072 extended_l2=on preallocation=metadata"
	}
	t.Logf("Formatting '%s', fmt=qcow2 %s compression_type=zlib size=%d backing_file=../%s backing_fmt=%s lazy_refcounts=off refcount_bits=16",
		s.file(v.Name), shape, v.Size, from.Name, from.Format())
}

// finishClone writes the final config, moves it to the target host and adds it to the pool. A pool that fails now leaves
// the config on the target.
func (e *Engine) finishClone(ctx context.Context, job *cloneJob, g *Guest) error {
	release, err := e.Locks.Cluster(ctx, "firewall-vm-"+strconv.Itoa(job.newid), 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	e.mu.Lock()
	delete(job.options, "lock")
	g.Config = qm.New(job.options)
	e.firewall.clone(job.source, job.newid)
	if job.target != "" {
		g.Host = job.target
	}
	e.mu.Unlock()
	if job.pool != "" {
		return e.addToPool(ctx, job.newid, job.pool)
	}
	return nil
}

func (e *Engine) rollBackClone(job *cloneJob, made []string) {
	e.discard(job.host, made)
	e.mu.Lock()
	defer e.mu.Unlock()
	// The config is unlinked where it was made: one that was already moved to the target stays, without its volumes.
	if g := e.guests[job.newid]; g != nil && g.Host == job.host {
		delete(e.guests, job.newid)
	}
}
