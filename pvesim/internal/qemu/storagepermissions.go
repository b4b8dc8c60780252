// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// checkCreateTags reproduces a fault of 9.2: the check is handed a hash instead of the old tags and names it.
func (p *permissions) checkCreateTags(r *api.Request, tags string) error {
	err := p.checkTags(r, "", tags)
	if err == nil {
		return nil
	}
	p.k.Mu.Lock()
	registered := qm.TagList(p.k.Options["registered-tags"])
	p.k.Mu.Unlock()
	for _, tag := range qm.TagList(tags) {
		if slices.Contains(registered, tag) {
			return err
		}
	}
	return api.Denied("/, Sys.Modify for modifying tag 'HASH(0x5f1d2c3b4a60)'")
}

var newDisk = regexp.MustCompile(`^([^:/]+):(\d+(?:\.\d+)?)$`)

// checkStorageAccess looks at every drive that a request sets: may the caller allocate there, or use that volume?
func (p *permissions) checkStorageAccess(r *api.Request, vmid int, options map[string]string, def string) error {
	for _, key := range qm.DriveKeys(options) {
		d, ok := qm.ParseDrive(key, options[key])
		if !ok || d.File == "none" {
			continue
		}
		if d.File == "cdrom" {
			if err := p.k.Need(r, "/", "Sys.Console"); err != nil {
				return err
			}
			continue
		}
		if strings.HasPrefix(d.File, "/") {
			if !r.Who.IsRoot() {
				return api.Failf("Only root can pass arbitrary filesystem paths.")
			}
			continue
		}
		if err := p.checkDriveStorage(r, vmid, d, def); err != nil {
			return err
		}
	}
	return nil
}

func (p *permissions) checkDriveStorage(r *api.Request, vmid int, d qm.Drive, def string) error {
	id := cmp.Or(d.Storage(), def)
	fresh := newDisk.MatchString(d.File) || strings.HasSuffix(d.File, ":cloudinit")
	p.k.Mu.Lock()
	s, err := p.store.CheckStorage(id, r.Host)
	v := p.store.Volume(r.Host, d.File)
	p.k.Mu.Unlock()
	if err != nil {
		return err
	}
	if !fresh {
		return p.checkVolumeUse(r, vmid, s, d, v)
	}
	if err := p.k.Need(r, "/storage/"+id, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	if !s.Holds("images") {
		return api.Failf("storage '%s' does not support content-type 'images'", id)
	}
	return p.checkImport(r, d)
}

// checkVolumeUse: an ISO needs the right to read its storage, another VM's disk the right to change that VM.
func (p *permissions) checkVolumeUse(r *api.Request, vmid int, s *storage.Storage, d qm.Drive, v *storage.Volume) error {
	at := "/storage/" + s.ID
	if v != nil && v.Content() == "images" && v.Owner == vmid {
		return nil
	}
	if p.k.Access.Has(r.Who, at, "Datastore.Allocate") {
		return nil
	}
	if _, name, _ := strings.Cut(d.File, ":"); strings.HasPrefix(name, "iso/") {
		return p.k.NeedAny(r, at, "Datastore.AllocateSpace", "Datastore.Audit")
	}
	if v != nil && v.Owner != 0 {
		return p.k.Need(r, "/vms/"+strconv.Itoa(v.Owner), "VM.Config.Disk")
	}
	return p.k.Need(r, at, "Datastore.Allocate")
}

func (p *permissions) checkImport(r *api.Request, d qm.Drive) error {
	from := d.Opts["import-from"]
	switch {
	case from == "":
		return nil
	case strings.HasPrefix(from, "/"):
		if !r.Who.IsRoot() {
			return api.Failf("Only root can pass arbitrary filesystem paths.")
		}
		return nil
	}
	id, _, _ := strings.Cut(from, ":")
	p.k.Mu.Lock()
	_, err := p.store.CheckStorage(id, r.Host)
	v := p.store.Volume(r.Host, from)
	p.k.Mu.Unlock()
	if err != nil {
		return err
	}
	if v != nil && v.Content() == "images" {
		return p.k.Need(r, "/vms/"+strconv.Itoa(v.Owner), "VM.Clone")
	}
	return p.k.NeedAny(r, "/storage/"+id, "Datastore.AllocateSpace", "Datastore.Audit")
}

// checkBridges demands SDN.Use on every bridge, or on the bridge's VLAN if one is set.
func (p *permissions) checkBridges(r *api.Request, options map[string]string) error {
	for _, key := range qm.NetKeys(options) {
		n := qm.ParseNet(options[key])
		bridge := n.Opts["bridge"]
		if bridge == "" {
			continue
		}
		at := "/sdn/zones/" + p.network.ZoneOf(bridge) + "/" + bridge
		if tag := n.Opts["tag"]; tag != "" {
			at += "/" + tag
		}
		if err := p.k.Need(r, at, "SDN.Use"); err != nil {
			return err
		}
	}
	return nil
}

// checkTags holds changes of tags against the cluster's rules for tags.
func (p *permissions) checkTags(r *api.Request, old, changed string) error {
	if p.k.Access.Has(r.Who, "/", "Sys.Modify") {
		return nil
	}
	p.k.Mu.Lock()
	access := qm.ParseFields(p.k.Options["user-tag-access"])
	registered := qm.TagList(p.k.Options["registered-tags"])
	allowed := p.k.AllowedTags(r, false)
	p.k.Mu.Unlock()
	mode := cmp.Or(access["user-allow"], "free")
	before, after := qm.TagList(old), qm.TagList(changed)
	for _, tag := range append(slices.Clone(after), before...) {
		if slices.Contains(before, tag) == slices.Contains(after, tag) {
			continue
		}
		if slices.Contains(registered, tag) || (mode != "free" && !slices.Contains(allowed, tag)) {
			return api.Denied(fmt.Sprintf("/, Sys.Modify for modifying tag '%s'", tag))
		}
	}
	return nil
}
