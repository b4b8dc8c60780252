// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// cloneJob is a clone request that passed its checks.
type cloneJob struct {
	source, newid int
	host, target  string
	storage       string
	format        string
	full          bool
	pool          string
	options       map[string]string // the new config; cloned drives are added one by one
	drives        []qm.Drive        // in the order of cloning
	running       bool
}

func (c *cloner) postClone(_ context.Context, r *api.Request) (api.Response, error) {
	if _, err := c.checkClone(r); err != nil {
		return api.Response{}, err
	}
	return kernel.TaskResponse(c.k.Fork(r, "qmclone", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		return c.clone(ctx, t, r)
	}))
}

// checkClone checks a clone request. It runs before the response and again in the task under the locks.
func (c *cloner) checkClone(r *api.Request) (*cloneJob, error) {
	job := &cloneJob{
		source: r.VMID, newid: r.Int("newid", 0), host: r.Host, target: r.Params.Values["target"],
		storage: r.Params.Values["storage"], format: r.Params.Values["format"], pool: r.Params.Values["pool"],
	}
	if job.target == job.host || job.target == "localhost" {
		job.target = ""
	}
	if job.pool != "" && !c.k.Access.PoolExists(job.pool) {
		return nil, api.Denied(fmt.Sprintf("pool '%s' does not exist", job.pool))
	}
	if err := c.checkCloneTarget(job); err != nil {
		return nil, err
	}
	if err := c.k.CheckQuorum(r); err != nil {
		return nil, err
	}
	config, err := c.cloneSource(r, job)
	if err != nil {
		return nil, err
	}
	shared, err := c.checkCloneStorage(r, job, config)
	if err != nil {
		return nil, err
	}
	if err := c.permissions.checkBridges(r, config); err != nil {
		return nil, err
	}
	if err := c.permissions.checkMappings(r, config); err != nil {
		return nil, err
	}
	if job.target != "" && !shared {
		return nil, api.Failf("can't clone VM to node '%s' (VM uses local storage)", job.target)
	}
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if c.k.Guests[job.newid] != nil {
		return nil, api.Failf("unable to create VM %d: config file already exists", job.newid)
	}
	return job, c.planDrives(job, config)
}

func (c *cloner) checkCloneTarget(job *cloneJob) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if job.target != "" && c.k.Host(job.target) == nil {
		return api.Failf("no such cluster node '%s'", job.target)
	}
	if job.storage == "" {
		return nil
	}
	s, err := c.store.CheckStorage(job.storage, job.host)
	if err != nil {
		return err
	}
	if job.target == "" {
		return nil
	}
	if _, err := c.store.CheckStorage(job.storage, job.target); err != nil {
		return err
	}
	if !s.Shared {
		return api.Failf("can't clone to non-shared storage '%s'", job.storage)
	}
	return nil
}

// cloneSource returns the config of the source and sets whether the clone is linked or full.
func (c *cloner) cloneSource(r *api.Request, job *cloneJob) (map[string]string, error) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.FindVM(job.host, job.source)
	if g == nil {
		return nil, api.Failf("unable to find configuration file for VM %d on node '%s'", job.source, job.host)
	}
	if lock := g.Config.Lock(); lock != "" {
		return nil, api.Failf("VM is locked (%s)", lock)
	}
	job.running = g.IsRunning()
	config := g.Config.Options
	if snap, ok := r.Value("snapname"); ok {
		s := g.Config.Snapshot(snap)
		if s == nil {
			return nil, api.Failf("snapshot '%s' does not exist", snap)
		}
		config = s.Options
	}
	job.full = !g.Config.IsTemplate()
	if _, given := r.Value("full"); given {
		job.full = r.Bool("full")
	}
	for _, param := range []string{"storage", "format"} {
		if _, given := r.Value(param); given && !job.full {
			return nil, api.Failf("parameter '%s' not allowed for linked clones", param)
		}
	}
	return c.cloneOptions(r, job, config), nil
}

// cloneOptions sets the config of the new VM: all options of the source, including those that only root can set, with a
// new identity.
func (c *cloner) cloneOptions(r *api.Request, job *cloneJob, config map[string]string) map[string]string {
	options := map[string]string{}
	for key, v := range config {
		switch {
		case strings.HasPrefix(key, "unused"), key == "template", key == "lock", key == "vmstate", key == "parent":
		case qm.IsNetKey(key):
			n := qm.ParseNet(v)
			n.MAC = qm.RandomMAC(c.k.Options["mac_prefix"])
			options[key] = n.String()
		default:
			options[key] = v
		}
	}
	options["smbios1"] = qm.WithNewUUID(options["smbios1"])
	if options["vmgenid"] != "" {
		options["vmgenid"] = uuid.NewString()
	}
	options["name"] = cmp.Or(r.Params.Values["name"], "Copy-of-VM-"+cmp.Or(config["name"], strconv.Itoa(job.source)))
	if d, ok := r.Value("description"); ok {
		options["description"] = d
	}
	job.options = options
	return config
}

// checkCloneStorage checks the privilege to allocate on the storage of each disk, and reports whether all storages are
// shared. An ISO on local storage ties the VM to its host, too.
func (c *cloner) checkCloneStorage(r *api.Request, job *cloneJob, config map[string]string) (shared bool, err error) {
	shared = true
	for _, d := range qm.VolumeDrives(config) {
		c.k.Mu.Lock()
		s := c.store.Storage(d.Storage())
		c.k.Mu.Unlock()
		if s == nil {
			return false, api.Failf("storage '%s' does not exist", d.Storage())
		}
		shared = shared && s.Shared
		if d.IsCDROM() && !d.IsCloudInit() {
			continue
		}
		if err := c.k.Require(r, "/storage/"+cmp.Or(job.storage, s.ID), "Datastore.AllocateSpace"); err != nil {
			return false, err
		}
	}
	return shared, nil
}

// planDrives collects the drives to clone and checks that they can be. The caller holds the mutex.
func (c *cloner) planDrives(job *cloneJob, config map[string]string) error {
	for _, key := range qm.DriveKeys(config) {
		d, ok := qm.ParseDrive(key, config[key])
		if !ok {
			return api.Failf("unable to parse drive options for '%s'", key)
		}
		if !d.HasVolume() || (d.IsCDROM() && !d.IsCloudInit()) {
			continue
		}
		if !job.full && !d.IsCloudInit() && !c.store.CanLink(job.host, d.File) {
			return api.Failf("Linked clone feature is not supported for '%s' (%s)", d.File, key)
		}
		job.drives = append(job.drives, d)
		delete(job.options, key)
	}
	return nil
}

// clone is the worker of a clone task. It holds the lock of the source shared (exclusively if the source runs) and the
// lock of the new VM exclusively. Both locks have a timeout of one second.
func (c *cloner) clone(ctx context.Context, t *tasks.Task, r *api.Request) error {
	c.k.Mu.Lock()
	mode := locks.Shared
	if g := c.k.FindVM(r.Host, r.VMID); g != nil && g.IsRunning() {
		mode = locks.Exclusive
	}
	c.k.Mu.Unlock()
	releaseSource, err := c.k.LockGuest(ctx, t, r.Host, r.VMID, mode, time.Second)
	if err != nil {
		return err
	}
	defer releaseSource()
	releaseNew, err := c.k.LockGuest(ctx, t, r.Host, r.Int("newid", 0), locks.Exclusive, time.Second)
	if err != nil {
		return err
	}
	defer releaseNew()
	job, err := c.checkClone(r)
	if err != nil {
		return err
	}
	g, err := c.createPlaceholder(job)
	if err != nil {
		return err
	}
	if c.k.Version.CloneAnnounced {
		t.Logf("creating a clone of VM %d with ID %d", job.source, job.newid)
	}
	made, err := c.cloneDrives(ctx, t, job, g)
	if err == nil {
		err = c.finishClone(ctx, job, g)
	}
	if err != nil {
		if !errors.Is(context.Cause(ctx), tasks.ErrPowerLost) { // otherwise the locked config and the volumes remain
			c.rollBackClone(t, job, made)
		}
		return api.Failf("clone failed: %v", err)
	}
	return nil
}

// createPlaceholder creates the new VM with a lock and a comment, without its identity.
func (c *cloner) createPlaceholder(job *cloneJob) (*kernel.Guest, error) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if c.k.Guests[job.newid] != nil {
		return nil, api.Failf("unable to create VM %d: config file already exists", job.newid)
	}
	g := &kernel.Guest{VMID: job.newid, Type: "qemu", Host: job.host}
	g.Config = qm.New(map[string]string{"lock": "clone", "description": " qmclone temporary file"})
	c.k.Guests[job.newid] = g
	return g, nil
}

// cloneDrives clones the drives in order. Proxmox writes the config, still locked, after each one.
func (c *cloner) cloneDrives(ctx context.Context, t *tasks.Task, job *cloneJob, g *kernel.Guest) (made []string, err error) {
	for _, d := range job.drives {
		v, err := c.cloneDrive(ctx, t, job, d)
		if v != nil {
			made = append(made, v.ID())
		}
		if err != nil {
			return made, err
		}
		c.k.Mu.Lock()
		s := c.store.Storage(v.Storage)
		d.File = s.VolumeID(v)
		if !d.IsCloudInit() {
			d.Opts["size"] = qm.FormatSize(v.Size)
		}
		delete(d.Opts, "format")
		job.options[d.Key] = d.String()
		job.options["lock"] = "clone"
		g.Config = qm.New(job.options)
		c.k.Mu.Unlock()
	}
	return made, nil
}

func (c *cloner) cloneDrive(ctx context.Context, t *tasks.Task, job *cloneJob, d qm.Drive) (*storage.Volume, error) {
	c.k.Mu.Lock()
	from := c.store.Volume(job.host, d.File)
	s := c.store.Storage(cmp.Or(job.storage, d.Storage()))
	c.k.Mu.Unlock()
	if from == nil {
		return nil, api.Failf("volume '%s' does not exist", d.File)
	}
	if d.IsCloudInit() {
		t.Logf("create full clone of drive %s (%s)", d.Key, d.File)
		v, err := c.allocator.AllocateCloudInit(ctx, t, job.host, s, job.newid)
		if err == nil && c.k.Version.CloneAnnounced {
			t.Logf("allocated target volume '%s'", v.ID())
		}
		return v, err
	}
	if !job.full {
		t.Logf("create linked clone of drive %s (%s)", d.Key, d.File)
		return c.allocator.LinkVolume(ctx, t, job.host, job.newid, s, from)
	}
	t.Logf("create full clone of drive %s (%s)", d.Key, d.File)
	format := job.format
	if format == "" && s.Kind().FileBased {
		format = from.Format()
	}
	v, err := c.allocator.Allocate(ctx, t, storage.Allocation{Host: job.host, Storage: s, Owner: job.newid, Format: format, Size: from.Size})
	if err != nil {
		return nil, err
	}
	return v, c.allocator.CopyVolume(ctx, t, s, from, v)
}

// finishClone writes the final config, moves it to the target host and adds the VM to the resource pool. If the last
// step fails, the config remains on the target.
func (c *cloner) finishClone(ctx context.Context, job *cloneJob, g *kernel.Guest) error {
	release, err := c.k.Locks.Cluster(ctx, "firewall-vm-"+strconv.Itoa(job.newid), 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	c.k.Mu.Lock()
	delete(job.options, "lock")
	g.Config = qm.New(job.options)
	c.firewall.CloneVM(job.source, job.newid)
	if job.target != "" {
		g.Host = job.target
	}
	c.k.Mu.Unlock()
	if job.pool != "" {
		return c.addToPool(ctx, job.newid, job.pool)
	}
	return nil
}

func (c *cloner) rollBackClone(t *tasks.Task, job *cloneJob, made []string) {
	c.allocator.DiscardVolumes(t, job.host, made)
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	// Proxmox removes the config on the source host only. One that was moved to the target remains, without its
	// volumes.
	if g := c.k.Guests[job.newid]; g != nil && g.Host == job.host {
		delete(c.k.Guests, job.newid)
	}
}
