// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pending"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// update is a config write that passed the checks of its parameters.
type update struct {
	set      map[string]string
	remove   []string
	revert   []string
	force    bool
	digest   string
	skipLock bool
	logText  string
}

// prepareUpdate runs the checks before the lock of the VM.
func (c *configs) prepareUpdate(r *api.Request) (*update, error) {
	u := &update{set: vmOptions(r), force: r.Bool("force"), digest: r.Params.Values["digest"], skipLock: r.Bool("skiplock")}
	for _, k := range slices.Sorted(maps.Keys(u.set)) {
		u.logText += fmt.Sprintf(" -%s %s", k, u.set[k])
	}
	if keys, ok := u.set["sshkeys"]; ok {
		if err := cloudinit.CheckSSHKeys(keys); err != nil {
			return nil, err
		}
	}
	if v, ok := u.set["cdrom"]; ok {
		u.set["ide2"] = v
		delete(u.set, "cdrom")
	}
	if err := c.parseLists(r, u); err != nil {
		return nil, err
	}
	if len(u.set)+len(u.remove)+len(u.revert) == 0 {
		return nil, api.Failf("no options specified")
	}
	if err := c.checkHookscript(r.Host, u.set["hookscript"]); err != nil {
		return nil, err
	}
	return u, c.checkUpdate(r, u)
}

// checkHookscript returns an error if a hookscript does not exist.
func (c *configs) checkHookscript(host, volid string) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	storage, name, ok := strings.Cut(volid, ":")
	s := c.store.Storage(storage)
	if !ok || s == nil || c.store.Volume(host, volid) != nil {
		return nil
	}
	return api.BadParam("hookscript", "script '%s' does not exist", s.FilePath(name))
}

// parseLists parses and checks the options in delete and revert.
func (c *configs) parseLists(r *api.Request, u *update) error {
	for _, opt := range schema.SplitList(r.Params.Values["revert"]) {
		if !c.hasOption(opt) {
			return api.BadParam("revert", "unknown option '%s'", opt)
		}
		if _, both := u.set[opt]; both {
			return api.BadParam("delete", "you can't use '-%s' and '-revert %s' at the same time", opt, opt)
		}
		u.revert = append(u.revert, opt)
	}
	for _, opt := range schema.SplitList(r.Params.Values["delete"]) {
		if opt == "cdrom" {
			opt = "ide2"
		}
		if _, both := u.set[opt]; both {
			return api.BadParam("delete", "you can't use '-%s' and -delete %s' at the same time", opt, opt)
		}
		if slices.Contains(u.revert, opt) {
			return api.BadParam("delete", "you can't use '-delete %s' and '-revert %s' at the same time", opt, opt)
		}
		if !c.hasOption(opt) {
			return api.BadParam("delete", "unknown option '%s'", opt)
		}
		u.remove = append(u.remove, opt)
	}
	return nil
}

func (c *configs) hasOption(opt string) bool {
	return !slices.Contains(nonConfigParams, opt) && c.k.Schema.Method("PUT /nodes/{node}/qemu/{vmid}/config").Lookup(opt) != nil
}

func (c *configs) checkUpdate(r *api.Request, u *update) error {
	if err := c.normalize(u.set); err != nil {
		return err
	}
	removed := map[string]string{}
	c.k.Mu.Lock()
	old := ""
	if g := c.k.FindVM(r.Host, r.VMID); g != nil {
		old = g.Config.Options["tags"]
		for _, opt := range u.remove {
			if qm.IsDriveKey(opt) { // the privilege depends on the kind of drive
				removed[opt] = g.Config.Options[opt]
			} else {
				removed[opt] = ""
			}
		}
		for opt := range u.set {
			if before, ok := g.Config.Options[opt]; ok && qm.IsDriveKey(opt) { // replacing a drive removes the old one
				removed[opt] = before
			}
		}
	}
	c.k.Mu.Unlock()
	vm := target{vmid: r.VMID}
	if err := c.permissions.checkOptions(r, vm, removed); err != nil {
		return err
	}
	if err := c.permissions.checkOptions(r, vm, u.set); err != nil {
		return err
	}
	if tags, ok := u.set["tags"]; ok || slices.Contains(u.remove, "tags") {
		if err := c.permissions.checkTags(r, old, tags); err != nil {
			return err
		}
	}
	if err := c.permissions.checkStorageAccess(r, r.VMID, u.set, ""); err != nil {
		return err
	}
	return c.permissions.checkBridges(r, u.set)
}

// checkState returns an error if the config does not exist, has another digest, is locked, protects a drive to be removed,
// or cannot be written.
func (c *configs) checkState(host string, vmid int, u *update) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.FindVM(host, vmid)
	switch {
	case g == nil:
		return kernel.MissingConfigError(host, vmid)
	case u.digest != "" && u.digest != g.Config.Digest():
		return api.Failf("checksum mismatch (file change by other user?)")
	case !u.skipLock && g.Config.Lock() != "":
		return api.Failf("VM is locked (%s)", g.Config.Lock())
	case g.Config.Bool("protection", false):
		for _, opt := range u.remove {
			if _, set := g.Config.Merged()[opt]; set && qm.IsDriveKey(opt) { // even if the write removes the protection
				return api.Failf("can't remove drive '%s' - protection mode enabled", opt)
			}
		}
	}
	return c.k.CheckWritable(c.k.Host(host), configFile(host, vmid))
}

// applyUpdate stores the changes as pending and applies them as far as the state of the VM allows.
func (c *configs) applyUpdate(ctx context.Context, t *tasks.Task, r *api.Request, u *update) error {
	made, err := c.disks.createDisks(ctx, t, r.Host, r.VMID, u.set)
	if err != nil {
		c.allocator.DiscardVolumes(t, r.Host, made)
		return err
	}
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	g := c.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return kernel.MissingConfigError(r.Host, r.VMID)
	}
	if err := checkBootOrder(g, u); err != nil {
		return err
	}
	if err := checkBalloon(g, u); err != nil {
		return err
	}
	stage(g, u)
	stuck := pending.StuckNICs(g)
	if len(stuck) > 0 {
		c.k.Mu.Unlock()
		err = c.k.Clock.Sleep(ctx, pending.UnplugTimeout)
		c.k.Mu.Lock()
	}
	pending.Apply(c.store, g, u.force)
	if err != nil || len(stuck) == 0 {
		return err
	}
	problems := map[string]string{}
	for _, key := range stuck {
		problems[key] = fmt.Sprintf("hotplug problem - error on hot-unplugging device '%s'", key)
	}
	return api.ParamError(problems)
}

func checkBootOrder(g *kernel.Guest, u *update) error {
	merged := g.Config.Merged()
	for _, dev := range qm.BootOrder(u.set["boot"]) {
		_, fresh := u.set[dev]
		_, exists := merged[dev]
		if (!fresh && !exists) || slices.Contains(u.remove, dev) {
			return api.Failf("invalid bootorder: device '%s' does not exist'", dev)
		}
	}
	return nil
}

func checkBalloon(g *kernel.Guest, u *update) error {
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
		return api.Failf("balloon value too large (must be smaller than assigned memory)")
	}
	return nil
}

// stage adds the changes to the pending section. New CD drives are appended to the boot order, removed drives are
// removed from it.
func stage(g *kernel.Guest, u *update) {
	c := g.Config
	order := qm.BootOrder(c.Merged()["boot"])
	if b, ok := u.set["boot"]; ok {
		order = qm.BootOrder(b)
	}
	_, bootPending := c.Pending["boot"]
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
		if i := slices.Index(order, opt); i >= 0 && !bootPending { // a pending order stays as it is
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
