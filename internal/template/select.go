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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// CanClone reports whether VMs on a Host can be cloned from a Template: it is on that
// Host, or all of its volumes are on storages that both Hosts share. Proxmox includes CD
// drives in this check, so an ISO on a local storage binds a Template to its Host.
func CanClone(snapshot *observed.Snapshot, templateHost string, config proxmox.VMConfig, host string) bool {
	if templateHost == host {
		return true
	}
	volumes := 0
	for _, drive := range config.Drives().Volumes() {
		storage := drive.Storage
		if storage == "" || strings.HasPrefix(drive.Slot, "unused") {
			continue // an empty drive, or not cloned
		}
		if !snapshot.Storages[observed.StorageKey{Host: templateHost, Storage: storage}].Shared {
			return false
		}
		if _, has := snapshot.Storages[observed.StorageKey{Host: host, Storage: storage}]; !has {
			return false
		}
		volumes++
	}
	return volumes > 0
}

// CreationTime returns the creation time in the configuration of a guest, in seconds
// since the epoch, or 0 if it is not set.
func CreationTime(config proxmox.VMConfig) int {
	created, err := strconv.Atoi(proxmox.ParseProperties(config.Options["meta"]).Value("ctime"))
	if err != nil {
		return 0
	}
	return created
}

// selectPerHost returns for each Host the Template that its VMs are cloned from. previous
// are the zones in the status. A new generation replaces the old one when it is settled,
// that is, in progress on no Host: otherwise drifted Nodes could be replaced on Hosts that
// still have the old generation, and drift again.
func (r Rollout) selectPerHost(previous []string, settled bool) []v1alpha1.TemplateZone {
	view, desired := r.View, r.Desired
	listed := map[string]int{}
	var zones []v1alpha1.TemplateZone
	for _, entry := range previous {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || !desired.appliesTo(zone.Region) {
			continue
		}
		listed[zone.Zone()] = zone.VMID
		if view.Snapshots[zone.Region] == nil {
			// Not polled since the start: an unreachable Cluster keeps its Templates.
			zones = append(zones, zone)
		}
	}
	isAtLocation := func(e Existing) bool {
		return slices.ContainsFunc(r.Locations, func(l Location) bool { return l.Region == e.Region && l.Host == e.Host })
	}
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		if !desired.appliesTo(region) {
			continue
		}
		snapshot := view.Snapshots[region]
		for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
			zone := v1alpha1.TemplateZone{Region: region, Host: host}
			var candidates []Existing
			for _, e := range r.Existing {
				if e.Region == region && CanClone(snapshot, e.Host, e.Config, host) {
					candidates = append(candidates, e)
				}
			}
			slices.SortStableFunc(candidates, func(a, b Existing) int {
				return cmp.Or(
					compareTrueFirst(desired.matches(a.Mark), desired.matches(b.Mark)),
					compareTrueFirst(snapshot.IsOnline(a.Host), snapshot.IsOnline(b.Host)),
					compareTrueFirst(isAtLocation(a), isAtLocation(b)),
					compareTrueFirst(a.VMID == listed[zone.Zone()], b.VMID == listed[zone.Zone()]),
					compareTrueFirst(a.Host == host, b.Host == host),
					cmp.Compare(CreationTime(b.Config), CreationTime(a.Config)),
					cmp.Compare(a.VMID, b.VMID),
				)
			})
			if zone.VMID = selectTemplate(desired, candidates, listed[zone.Zone()], settled); zone.VMID != 0 {
				zones = append(zones, zone)
			}
		}
	}
	return zones
}

// selectTemplate returns the VMID of one of the candidates, which are sorted by
// preference, or 0 if there is none.
func selectTemplate(desired Desired, candidates []Existing, listed int, settled bool) int {
	if len(candidates) == 0 {
		return 0
	}
	best := candidates[0]
	for _, candidate := range candidates {
		// The generation in use is kept until the new one is settled.
		if candidate.VMID == listed && !settled && desired.matches(best.Mark) && !desired.matches(candidate.Mark) {
			return listed
		}
	}
	return best.VMID
}

// compareTrueFirst sorts true before false.
func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
