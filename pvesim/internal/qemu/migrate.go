// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// postMigrate moves a VM to another host.
func (m *migrator) postMigrate(_ context.Context, r *api.Request) (api.Response, error) {
	to := r.Params.Values["target"]
	m.k.Mu.Lock()
	g := m.k.FindVM(r.Host, r.VMID)
	h := m.k.Host(to)
	m.k.Mu.Unlock()
	switch {
	case to == r.Host:
		return api.Response{}, api.BadParam("target", "target is local node.")
	case h == nil:
		return api.Response{}, api.Failf("no such cluster node '%s'", to)
	case g == nil:
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	case m.power.IsRunning(g) && !r.Bool("online"):
		return api.Response{}, api.Failf("can't migrate running VM without --online")
	}
	if err := m.k.CheckQuorum(); err != nil {
		return api.Response{}, err
	}
	typ := "qmigrate"
	if m.ha.IsManaged(r.VMID) {
		typ = "hamigrate"
	}
	return kernel.TaskResponse(m.k.Fork(r, typ, strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		return m.migrate(ctx, t, r, to)
	})), nil
}

func (m *migrator) migrate(ctx context.Context, t *tasks.Task, r *api.Request, to string) error {
	release, err := m.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return err
	}
	defer release()
	t.Logf("starting migration of VM %d to node '%s'", r.VMID, to)
	m.k.Mu.Lock()
	g, local, err := m.checkMigrate(r, to)
	var took time.Duration
	if err == nil {
		g.Config.Options["lock"] = "migrate"
		took = migrationTime(g, local)
	}
	m.k.Mu.Unlock()
	if err != nil {
		return api.Failf("migration aborted: %v", err)
	}
	err = m.k.Clock.Sleep(ctx, took)
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	delete(g.Config.Options, "lock")
	if err != nil {
		return err
	}
	m.relocate(g, to)
	t.Logf("migration finished successfully")
	return nil
}

// checkMigrate returns the volumes to copy. The caller holds the mutex.
func (m *migrator) checkMigrate(r *api.Request, to string) (*kernel.Guest, []*storage.Volume, error) {
	g := m.k.FindVM(r.Host, r.VMID)
	switch {
	case g == nil:
		return nil, nil, kernel.MissingConfigError(r.Host, r.VMID)
	case g.Config.Lock() != "":
		return nil, nil, api.Failf("VM is locked (%s)", g.Config.Lock())
	case !m.k.Host(to).Online:
		return nil, nil, api.Failf("Can't connect to destination address using public key")
	}
	var local []*storage.Volume
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() || m.store.Storage(d.Storage()).Shared {
			continue
		}
		v := m.store.Volume(g.Host, d.File)
		switch {
		case v == nil || v.Content() != "images":
			return nil, nil, api.Failf("can't migrate '%s' - local cdrom", d.File)
		case v.Base != "":
			return nil, nil, api.Failf("can't migrate local disk '%s' as it's a clone of '%s:%s'", d.File, v.Storage, v.Base)
		case g.IsRunning() && !r.Bool("with-local-disks") && !d.IsCloudInit():
			return nil, nil, api.Failf("can't live migrate attached local disks without with-local-disks option")
		case !m.store.Storage(d.Storage()).IsAvailableOn(to):
			return nil, nil, api.Failf("storage '%s' is not available on node '%s'", d.Storage(), to)
		}
		local = append(local, v)
	}
	return g, local, nil
}

// migrationTime returns the time to copy local disks and, if the VM runs, its memory.
func migrationTime(g *kernel.Guest, local []*storage.Volume) time.Duration {
	seconds := 2.0
	for _, v := range local {
		seconds += float64(v.Size) / float64(400<<20)
	}
	if g.IsRunning() {
		seconds += float64(g.Memory()) / float64(800<<20)
	}
	return time.Duration(seconds * float64(time.Second))
}

func (m *migrator) getMigrate(_ context.Context, r *api.Request) (api.Response, error) {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	g := m.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	local := []api.Row{}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || !d.HasVolume() || m.store.Storage(d.Storage()).Shared {
			continue
		}
		size, _ := qm.ParseSize(d.Opts["size"])
		local = append(local, api.Row{"volid": d.File, "size": size, "cdrom": api.BoolInt(d.IsCDROM())})
	}
	return api.Response{Data: api.Row{"running": api.BoolInt(g.IsRunning()), "local_disks": local, "local_resources": []string{}, "mapped-resources": []string{}}}, nil
}
