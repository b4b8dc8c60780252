// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"maps"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// AddGuest adds a guest. It runs since the given time, or is stopped if since is zero. Missing volumes of its drives
// are created.
func (vms *VMs) AddGuest(g *kernel.Guest, since time.Time) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	if vms.k.Guests[g.VMID] != nil {
		return fmt.Errorf("adding guest %d: the VMID is used twice", g.VMID)
	}
	if vms.k.Host(g.Host) == nil {
		return fmt.Errorf("adding guest %d: there is no host %q", g.VMID, g.Host)
	}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		if err := vms.store.CreateMissingVolume(g, key); err != nil {
			return fmt.Errorf("adding guest %d: %w", g.VMID, err)
		}
	}
	vms.k.Guests[g.VMID] = g
	if !since.IsZero() && g.Type == "qemu" {
		vms.power.On(g)
	}
	g.StartedAt = since
	return nil
}

// MigrateGuest moves a VM to another host immediately.
func (vms *VMs) MigrateGuest(vmid int, to string) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	g := vms.k.Guests[vmid]
	switch {
	case g == nil:
		return api.Failf("there is no VM %d", vmid)
	case vms.k.Host(to) == nil:
		return api.Failf("no such cluster node '%s'", to)
	}
	vms.relocate(g, to)
	return nil
}

// RestoreCopy creates a VM as restoring a backup of another VM does: with a new VMID and new volumes, but the same
// UUID, description, tags and addresses.
func (vms *VMs) RestoreCopy(vmid, newid int) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	g := vms.k.Guests[vmid]
	switch {
	case g == nil:
		return api.Failf("there is no VM %d", vmid)
	case vms.k.Guests[newid] != nil:
		return api.Failf("VM %d already exists", newid)
	}
	options := maps.Clone(g.Config.Options)
	delete(options, "lock")
	for _, key := range qm.DriveKeys(options) {
		d, ok := qm.ParseDrive(key, options[key])
		v := vms.store.Volume(g.Host, d.File)
		if !ok || v == nil || v.Content() != "images" {
			continue
		}
		s := vms.store.Storage(v.Storage)
		name := vms.store.FreeName(storage.Allocation{Host: g.Host, Storage: s, Owner: newid, Format: v.Format()})
		if d.IsCloudInit() {
			name = s.VolumeName(newid, "cloudinit", "qcow2")
		}
		vms.store.PutVolume(&storage.Volume{Storage: s.ID, Host: v.Host, Name: name, Size: v.Size, Used: v.Used, Owner: newid, Disk: v.Disk.Clone()})
		d.File = s.ID + ":" + name
		options[key] = d.String()
	}
	vms.k.Guests[newid] = &kernel.Guest{VMID: newid, Type: "qemu", Host: g.Host, Config: qm.New(options)}
	return nil
}

// SetConfigLock sets the "lock:" key of a VM, or removes it if lock is empty.
func (vms *VMs) SetConfigLock(vmid int, lock string) error {
	vms.k.Mu.Lock()
	defer vms.k.Mu.Unlock()
	g := vms.k.Guests[vmid]
	if g == nil {
		return api.Failf("there is no VM %d", vmid)
	}
	if lock == "" {
		delete(g.Config.Options, "lock")
	} else {
		g.Config.Options["lock"] = lock
	}
	return nil
}
