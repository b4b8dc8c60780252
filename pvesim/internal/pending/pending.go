// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pending applies the pending changes of VM configs.
package pending

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Applier applies pending changes to the config of a VM and releases the volumes that it no longer uses.
type Applier struct {
	store *storage.Store
}

// New returns an applier.
func New(store *storage.Store) *Applier { return &Applier{store: store} }

// hotApplied are the options that take effect on a running VM at once.
const hotApplied = "name description tags onboot protection startup shares hookscript vmstatestorage lock cpulimit cpuunits balloon " +
	"autostart " + cloudinit.Options

// Settle applies pending changes: all of them to a stopped VM, the hot-pluggable ones to a running VM.
func (a *Applier) Settle(g *kernel.Guest, force bool) {
	if !g.Running() {
		a.apply(g, force, func(string, bool) bool { return true })
		return
	}
	a.apply(g, force, func(opt string, remove bool) bool { return a.hotPlugs(g, opt, remove) })
}

func (a *Applier) ApplyAll(g *kernel.Guest) {
	a.apply(g, false, func(string, bool) bool { return true })
}

func (a *Applier) hotPlugs(g *kernel.Guest, opt string, remove bool) bool {
	base := qm.Stem(opt)
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
		return a.changesMedium(g, opt, remove)
	}
	return false
}

// changesMedium: an existing CD drive of a running VM takes another medium, but it does not come or go.
func (a *Applier) changesMedium(g *kernel.Guest, opt string, remove bool) bool {
	old, ok := qm.ParseDrive(opt, g.Config.Options[opt])
	changed, _ := qm.ParseDrive(opt, g.Config.Pending[opt])
	return !remove && ok && old.IsCDROM() && changed.IsCDROM() && !changed.IsCloudInit()
}

func (a *Applier) apply(g *kernel.Guest, force bool, now func(opt string, remove bool) bool) {
	c := g.Config
	for _, opt := range slices.Sorted(maps.Keys(c.Deleted)) {
		if !now(opt, true) {
			continue
		}
		old := c.Options[opt]
		delete(c.Options, opt)
		delete(c.Deleted, opt)
		a.store.ReleaseDrive(g, opt, old, "", force)
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
		a.store.ReleaseDrive(g, opt, old, v, force)
	}
}
