// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Serves tells whether VMs on a Host can be cloned from a Template: it is on that
// Host, or all of its volumes are on storages that both share. Proxmox counts CD
// drives too: an ISO on a local storage ties a Template to its Host.
func CanClone(snapshot *inventory.Snapshot, home string, config proxmox.VMConfig, host string) bool {
	if home == host {
		return true
	}
	volumes := 0
	for option, value := range config.Options {
		if !holdsVolume(option) {
			continue
		}
		storage := proxmox.ParseDrive(option, value).Storage
		if storage == "" {
			continue // an empty drive
		}
		if !snapshot.Storages[inventory.StorageKey{Host: home, Storage: storage}].Shared {
			return false
		}
		if _, has := snapshot.Storages[inventory.StorageKey{Host: host, Storage: storage}]; !has {
			return false
		}
		volumes++
	}
	return volumes > 0
}

func holdsVolume(option string) bool {
	bus := strings.TrimRight(option, "0123456789")
	return bus != option && slices.Contains([]string{"ide", "sata", "scsi", "virtio", "efidisk", "tpmstate"}, bus)
}

// Created is when Proxmox made a guest, as its configuration says; 0 if it does not.
func CreationTime(config proxmox.VMConfig) int {
	created, err := strconv.Atoi(proxmox.ParseProperties(config.Options["meta"]).Value("ctime"))
	if err != nil {
		return 0
	}
	return created
}

// Serving lists for each Host the Template that VMs there are cloned from. A new
// generation takes over once it is settled: no Host is still at work on it. Nodes
// that drift would else be replaced on Hosts that have the old one, and drift again.
func SelectPerHost(view inventory.View, w Desired, found []Existing, before []string, settled bool) []v1alpha1.TemplateZone {
	listed := map[string]int{}
	var zones []v1alpha1.TemplateZone
	for _, entry := range before {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || !w.wants(zone.Region) {
			continue
		}
		listed[zone.Zone()] = zone.VMID
		if view.Snapshots[zone.Region] == nil {
			// Never read since the start: that a Cluster does not answer takes no
			// Template away.
			zones = append(zones, zone)
		}
	}
	places := Locations(view, w, found)
	atPlace := func(f Existing) bool {
		return slices.ContainsFunc(places, func(p Location) bool { return p.Region == f.Region && p.Host == f.Host })
	}
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		if !w.wants(region) {
			continue
		}
		snapshot := view.Snapshots[region]
		for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
			zone := v1alpha1.TemplateZone{Region: region, Host: host}
			var candidates []Existing
			for _, f := range found {
				if f.Region == region && CanClone(snapshot, f.Host, f.Config, host) {
					candidates = append(candidates, f)
				}
			}
			slices.SortStableFunc(candidates, func(a, b Existing) int {
				return cmp.Or(
					first(w.made(a.Mark), w.made(b.Mark)),
					first(snapshot.Hosts[a.Host].Online, snapshot.Hosts[b.Host].Online),
					first(atPlace(a), atPlace(b)),
					first(a.VMID == listed[zone.Zone()], b.VMID == listed[zone.Zone()]),
					first(a.Host == host, b.Host == host),
					cmp.Compare(CreationTime(b.Config), CreationTime(a.Config)),
					cmp.Compare(a.VMID, b.VMID),
				)
			})
			if zone.VMID = serving(w, candidates, listed[zone.Zone()], settled); zone.VMID != 0 {
				zones = append(zones, zone)
			}
		}
	}
	return zones
}

// serving picks among the Templates that a Host could use, the best first; 0 where
// there is none.
func serving(w Desired, candidates []Existing, listed int, settled bool) int {
	if len(candidates) == 0 {
		return 0
	}
	best := candidates[0]
	for _, f := range candidates {
		// The generation that is in use stays until the new one is settled.
		if f.VMID == listed && !settled && w.made(best.Mark) && !w.made(f.Mark) {
			return listed
		}
	}
	return best.VMID
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
