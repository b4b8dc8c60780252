// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pending applies the pending changes of VM configs and releases volumes that are no longer used.
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

// hotPluggable are the options that take effect on a running VM immediately.
const hotPluggable = "name description tags onboot protection startup shares hookscript vmstatestorage lock cpulimit cpuunits balloon " +
	"autostart " + cloudinit.Options

// Apply applies pending changes: all of them if the VM is stopped, the hot-pluggable ones if it runs. The caller holds
// the mutex.
func Apply(store *storage.Store, g *kernel.Guest, force bool) {
	applyMatching(store, g, force, func(opt string, remove bool) bool { return !g.IsRunning() || canHotPlug(g, opt, remove) })
}

// ApplyAll applies all pending changes. The caller holds the mutex.
func ApplyAll(store *storage.Store, g *kernel.Guest) {
	applyMatching(store, g, false, func(string, bool) bool { return true })
}

func canHotPlug(g *kernel.Guest, opt string, remove bool) bool {
	base := qm.Stem(opt)
	switch {
	case slices.Contains(strings.Fields(hotPluggable), base):
		return true
	case base == "net":
		return hasNetworkHotPlug(g) && !isStuck(g, opt, remove)
	case base == "unused":
		return true
	case base == "scsi" || base == "virtio":
		return isMediumChange(g, opt, remove) || strings.Contains(hotPlugFeatures(g), "disk")
	case base == "ide" || base == "sata":
		return isMediumChange(g, opt, remove)
	}
	return false
}

func hasNetworkHotPlug(g *kernel.Guest) bool { return strings.Contains(hotPlugFeatures(g), "network") }

func hotPlugFeatures(g *kernel.Guest) string {
	const all = "network,disk,usb"
	if features := cmp.Or(g.Config.Options["hotplug"], all); features != "1" {
		return features
	}
	return all
}

// isMediumChange reports whether a change only replaces the medium of an existing CD drive. A running VM cannot gain or
// lose CD drives.
func isMediumChange(g *kernel.Guest, opt string, remove bool) bool {
	old, ok := qm.ParseDrive(opt, g.Config.Options[opt])
	changed, _ := qm.ParseDrive(opt, g.Config.Pending[opt])
	return !remove && ok && old.IsCDROM() && changed.IsCDROM() && !changed.IsCloudInit()
}

func applyMatching(store *storage.Store, g *kernel.Guest, force bool, now func(opt string, remove bool) bool) {
	c := g.Config
	for _, opt := range slices.Sorted(maps.Keys(c.Deleted)) {
		if !now(opt, true) {
			continue
		}
		old := c.Options[opt]
		delete(c.Options, opt)
		delete(c.Deleted, opt)
		store.ReleaseDrive(g, opt, old, "", force)
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
		store.ReleaseDrive(g, opt, old, v, force)
	}
	g.Instance.NotifyUpdated()
}
