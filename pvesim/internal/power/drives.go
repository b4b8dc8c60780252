// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"maps"
	"path"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// current returns the current options of a VM and whether it is paused.
func (c *Controller) current(g *kernel.Guest) (options map[string]string, paused bool) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	return maps.Clone(g.Config.Options), g.Paused
}

// drives returns the disks of a VM and opens their files.
func (c *Controller) drives(g *kernel.Guest) []kernel.DiskFile {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	var out []kernel.DiskFile
	for _, d := range qm.VolumeDrives(g.Config.Options) {
		v := c.store.Volume(g.Host, d.File)
		if d.IsCDROM() || v == nil {
			continue
		}
		f := kernel.DiskFile{Slot: d.Key, Volume: d.File, Size: v.Size}
		if dir := c.store.Dir(); dir != "" {
			v.Disk.SetInUse(true)
			f.Path, f.Base = v.Disk.Open(dir, path.Base(v.Name))
		}
		out = append(out, f)
	}
	return out
}

// closeDisks records that the guest of a VM no longer writes to its disks.
func (c *Controller) closeDisks(g *kernel.Guest) {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	for _, d := range qm.VolumeDrives(g.Config.Options) {
		if v := c.store.Volume(g.Host, d.File); v != nil {
			v.Disk.SetInUse(false)
		}
	}
}
