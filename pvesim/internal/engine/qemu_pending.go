// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// applyUpdate writes the changes as pending and then lets them take effect as far as the VM's state allows.
func (e *Engine) applyUpdate(ctx context.Context, t *tasks.Task, r *Request, u *update) error {
	made, err := e.createDisks(ctx, t, r.host, r.vmid, u.set)
	if err != nil {
		e.discard(r.host, made)
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return missingConfig(r.host, r.vmid)
	}
	if err := checkBootOrder(g, u); err != nil {
		return err
	}
	if err := checkBalloon(g, u); err != nil {
		return err
	}
	e.stage(g, u)
	e.settle(g, u.force)
	return nil
}

func checkBootOrder(g *Guest, u *update) error {
	merged := g.Config.Merged()
	for _, dev := range qm.BootOrder(u.set["boot"]) {
		_, fresh := u.set[dev]
		_, exists := merged[dev]
		if (!fresh && !exists) || slices.Contains(u.remove, dev) {
			return failf("invalid bootorder: device '%s' does not exist'", dev)
		}
	}
	return nil
}

func checkBalloon(g *Guest, u *update) error {
	merged := g.Config.Merged()
	for _, k := range []string{"memory", "balloon"} {
		if v, ok := u.set[k]; ok {
			merged[k] = v
		}
	}
	if slices.Contains(u.remove, "balloon") {
		return nil
	}
	if qm.Number(merged["balloon"], 0) > qm.Number(merged["memory"], 512) {
		return failf("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}

// stage puts the changes into the pending section. A new CD joins the end of the boot order, a removed drive leaves it.
func (e *Engine) stage(g *Guest, u *update) {
	c := g.Config
	order := qm.BootOrder(c.Merged()["boot"])
	if b, ok := u.set["boot"]; ok {
		order = qm.BootOrder(b)
	}
	changed := false
	for _, opt := range u.revert {
		delete(c.Pending, opt)
		delete(c.Deleted, opt)
	}
	for _, opt := range u.remove {
		delete(c.Pending, opt)
		if _, ok := c.Options[opt]; ok {
			c.Deleted[opt] = true
		}
		if i := slices.Index(order, opt); i >= 0 {
			order, changed = slices.Delete(order, i, i+1), true
		}
	}
	for _, opt := range slices.Sorted(maps.Keys(u.set)) {
		v := u.set[opt]
		delete(c.Deleted, opt)
		c.Pending[opt] = v
		d, ok := qm.ParseDrive(opt, v)
		if ok && qm.IsDriveKey(opt) && d.IsCDROM() && !d.IsCloudInit() && len(order) > 0 && !slices.Contains(order, opt) {
			order, changed = append(order, opt), true
		}
	}
	if changed {
		c.Pending["boot"] = "order=" + strings.Join(order, ";")
	}
}

// hotApplied are the options that take effect on a running VM at once.
const hotApplied = "name description tags onboot protection startup shares hookscript vmstatestorage lock cpulimit cpuunits balloon " +
	"autostart " + cloudInitOptions

// settle applies pending changes: all of them to a stopped VM, the hot-pluggable ones to a running VM.
func (e *Engine) settle(g *Guest, force bool) {
	if !g.running() {
		e.applyPending(g, force, func(string, bool) bool { return true })
		return
	}
	e.applyPending(g, force, func(opt string, remove bool) bool { return e.hotPlugs(g, opt, remove) })
}

func (e *Engine) applyAllPending(g *Guest) {
	e.applyPending(g, false, func(string, bool) bool { return true })
}

func (e *Engine) hotPlugs(g *Guest, opt string, remove bool) bool {
	base := stem(opt)
	features := cmp.Or(g.Config.Options["hotplug"], "network,disk,usb")
	if features == "1" {
		features = "network,disk,usb"
	}
	switch {
	case slices.Contains(strings.Fields(hotApplied), base):
		return true
	case base == "net":
		return strings.Contains(features, "network")
	case base == "unused":
		return true
	case base == "scsi" || base == "virtio":
		return strings.Contains(features, "disk")
	case base == "ide" || base == "sata":
		return e.changesMedium(g, opt, remove)
	}
	return false
}

// changesMedium: an existing CD drive of a running VM takes another medium, but it does not come or go.
func (e *Engine) changesMedium(g *Guest, opt string, remove bool) bool {
	old, ok := qm.ParseDrive(opt, g.Config.Options[opt])
	changed, _ := qm.ParseDrive(opt, g.Config.Pending[opt])
	return !remove && ok && old.IsCDROM() && changed.IsCDROM() && !changed.IsCloudInit()
}

func (e *Engine) applyPending(g *Guest, force bool, now func(opt string, remove bool) bool) {
	c := g.Config
	for _, opt := range slices.Sorted(maps.Keys(c.Deleted)) {
		if !now(opt, true) {
			continue
		}
		old := c.Options[opt]
		delete(c.Options, opt)
		delete(c.Deleted, opt)
		e.releaseDrive(g, opt, old, "", force)
	}
	for _, opt := range slices.Sorted(maps.Keys(c.Pending)) {
		v := c.Pending[opt]
		if v == c.Options[opt] {
			delete(c.Pending, opt)
			continue
		}
		if !now(opt, false) {
			continue
		}
		old := c.Options[opt]
		c.Options[opt] = v
		delete(c.Pending, opt)
		e.releaseDrive(g, opt, old, v, force)
	}
}

// releaseDrive looks after the volume that a drive no longer uses: cloud-init drives and unused disks are deleted, other
// disks become "unusedN".
func (e *Engine) releaseDrive(g *Guest, opt, old, now string, force bool) {
	unused := strings.HasPrefix(opt, "unused")
	if old == "" || (!qm.IsDriveKey(opt) && !unused) {
		return
	}
	was, _ := qm.ParseDrive(opt, old)
	is, _ := qm.ParseDrive(opt, now)
	v := e.volume(g.Host, was.File)
	if was.File == is.File || v == nil || v.Content() != "images" || v.Owner != g.VMID {
		return
	}
	if unused || force || was.IsCloudInit() {
		e.removeVolume(g.Host, was.File)
		return
	}
	for i := range 256 {
		key := "unused" + strconv.Itoa(i)
		if _, taken := g.Config.Options[key]; !taken {
			g.Config.Options[key] = was.File
			return
		}
	}
}
