// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// typed gives an option the JSON type that Proxmox answers with: integers and booleans are numbers, all else is text.
func (e *Engine) typed(key, v string) any {
	p := e.Schema.Method("PUT /nodes/{node}/qemu/{vmid}/config").Lookup(key)
	if p == nil || (p.Type != "integer" && p.Type != "boolean") {
		return v
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return v
	}
	return n
}

const hiddenPassword = "**********"

func (e *Engine) getConfig(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	options := g.Config.Merged()
	if r.on("current") {
		options = g.Config.Options
	}
	if name, ok := r.value("snapshot"); ok {
		s := g.Config.Snapshot(name)
		if s == nil {
			return Response{}, failf("snapshot '%s' does not exist", name)
		}
		options = s.Options
	}
	out := row{"digest": g.Config.Digest()}
	for k, v := range options {
		out[k] = e.typed(k, v)
	}
	if _, ok := out["cipassword"]; ok {
		out["cipassword"] = hiddenPassword
	}
	if g.Config.Parent != "" {
		out["parent"] = g.Config.Parent
	}
	return Response{Data: out}, nil
}

func (e *Engine) getPending(_ context.Context, r *Request) (Response, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(r.host, r.vmid)
	if g == nil {
		return Response{}, missingConfig(r.host, r.vmid)
	}
	keys := map[string]bool{"digest": true}
	for k := range g.Config.Options {
		keys[k] = true
	}
	for k := range g.Config.Pending {
		keys[k] = true
	}
	rows := []row{}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		out := row{"key": k}
		if k == "digest" {
			out["value"] = g.Config.Digest()
		}
		if v, ok := g.Config.Options[k]; ok {
			out["value"] = e.hide(k, v)
		}
		if v, ok := g.Config.Pending[k]; ok {
			out["pending"] = e.hide(k, v)
		}
		if g.Config.Deleted[k] {
			out["delete"] = 1
		}
		rows = append(rows, out)
	}
	return Response{Data: rows}, nil
}

func (e *Engine) hide(key, v string) any {
	if key == "cipassword" {
		return hiddenPassword
	}
	return e.typed(key, v)
}

// update is a config write after its parameters were checked.
type update struct {
	set          map[string]string
	remove       []string
	revert       []string
	force        bool
	digest       string
	skipLock     bool
	announcement string
}

// prepareUpdate runs what Proxmox checks before it takes the VM's lock.
func (e *Engine) prepareUpdate(r *Request) (*update, error) {
	u := &update{set: optionsOf(r), force: r.on("force"), digest: r.Params.Values["digest"], skipLock: r.on("skiplock")}
	for _, k := range slices.Sorted(maps.Keys(u.set)) {
		u.announcement += fmt.Sprintf(" -%s %s", k, u.set[k])
	}
	if u.skipLock && !r.Who.IsRoot() {
		return nil, badParam("skiplock", "Only root may use this option.")
	}
	if keys, ok := u.set["sshkeys"]; ok {
		if err := checkSSHKeys(keys); err != nil {
			return nil, err
		}
	}
	if v, ok := u.set["cdrom"]; ok {
		u.set["ide2"] = v
		delete(u.set, "cdrom")
	}
	if err := e.readLists(r, u); err != nil {
		return nil, err
	}
	if len(u.set)+len(u.remove)+len(u.revert) == 0 {
		return nil, failf("no options specified")
	}
	return u, e.checkUpdate(r, u)
}

// readLists checks the options named in delete and revert.
func (e *Engine) readLists(r *Request, u *update) error {
	for _, opt := range schema.SplitList(r.Params.Values["revert"]) {
		if !e.optionExists(opt) {
			return badParam("revert", "unknown option '%s'", opt)
		}
		if _, both := u.set[opt]; both {
			return badParam("delete", "you can't use '-%s' and '-revert %s' at the same time", opt, opt)
		}
		u.revert = append(u.revert, opt)
	}
	for _, opt := range schema.SplitList(r.Params.Values["delete"]) {
		if opt == "cdrom" {
			opt = "ide2"
		}
		if _, both := u.set[opt]; both {
			return badParam("delete", "you can't use '-%s' and -delete %s' at the same time", opt, opt)
		}
		if slices.Contains(u.revert, opt) {
			return badParam("delete", "you can't use '-delete %s' and '-revert %s' at the same time", opt, opt)
		}
		if !e.optionExists(opt) {
			return badParam("delete", "unknown option '%s'", opt)
		}
		u.remove = append(u.remove, opt)
	}
	return nil
}

func (e *Engine) optionExists(opt string) bool {
	return !slices.Contains(notOptions, opt) && e.Schema.Method("PUT /nodes/{node}/qemu/{vmid}/config").Lookup(opt) != nil
}

func (e *Engine) checkUpdate(r *Request, u *update) error {
	if err := e.normalize(u.set); err != nil {
		return err
	}
	removed := map[string]string{}
	e.mu.Lock()
	old := ""
	if g := e.guestOn(r.host, r.vmid); g != nil {
		old = g.Config.Options["tags"]
		for _, opt := range u.remove {
			if qm.IsDriveKey(opt) { // the drive's kind decides which privilege its removal needs
				removed[opt] = g.Config.Options[opt]
			} else {
				removed[opt] = ""
			}
		}
		for opt := range u.set {
			if before, ok := g.Config.Options[opt]; ok && qm.IsDriveKey(opt) { // a drive that is replaced goes, too
				removed[opt] = before
			}
		}
	}
	e.mu.Unlock()
	vm := target{vmid: r.vmid}
	if err := e.checkOptions(r, vm, removed); err != nil {
		return err
	}
	if err := e.checkOptions(r, vm, u.set); err != nil {
		return err
	}
	if tags, ok := u.set["tags"]; ok || slices.Contains(u.remove, "tags") {
		if err := e.checkTags(r, old, tags); err != nil {
			return err
		}
	}
	if err := e.checkStorageAccess(r, r.vmid, u.set, ""); err != nil {
		return err
	}
	return e.checkBridges(r, u.set)
}

// checkState looks at what only the config itself can tell: does it exist, is it the expected one, is it locked?
func (e *Engine) checkState(host string, vmid int, u *update) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.guestOn(host, vmid)
	switch {
	case g == nil:
		return missingConfig(host, vmid)
	case u.digest != "" && u.digest != g.Config.Digest():
		return failf("checksum mismatch (file change by other user?)")
	case !u.skipLock && g.Config.Lock() != "":
		return failf("VM is locked (%s)", g.Config.Lock())
	}
	return e.writable(configFile(host, vmid))
}

// putConfig changes the config and answers when it is done; it may wait ten seconds for the VM's lock.
func (e *Engine) putConfig(ctx context.Context, r *Request) (Response, error) {
	u, err := e.prepareUpdate(r)
	if err != nil {
		return Response{}, err
	}
	if e.Version.EarlyLockCheck {
		if err := e.checkState(r.host, r.vmid, u); err != nil {
			return Response{}, err
		}
	}
	release, err := e.lockGuest(ctx, nil, r.host, r.vmid, locks.Exclusive, 10*time.Second)
	if err != nil {
		return Response{}, failf("%v", err)
	}
	defer release()
	if err := e.checkState(r.host, r.vmid, u); err != nil {
		return Response{}, err
	}
	return Response{}, e.applyUpdate(ctx, nil, r, u)
}

// postConfig does the same in a task.
func (e *Engine) postConfig(ctx context.Context, r *Request) (Response, error) {
	u, err := e.prepareUpdate(r)
	if err != nil {
		return Response{}, err
	}
	if err := e.checkState(r.host, r.vmid, u); err != nil {
		return Response{}, err
	}
	t := e.fork(r, "qmconfig", strconv.Itoa(r.vmid), func(ctx context.Context, t *tasks.Task) error {
		release, err := e.lockGuest(ctx, t, r.host, r.vmid, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		if err := e.checkState(r.host, r.vmid, u); err != nil {
			return err
		}
		t.Logf("update VM %d:%s", r.vmid, u.announcement)
		return e.applyUpdate(ctx, t, r, u)
	})
	return e.awaitBriefly(ctx, r, t, "background_delay")
}
