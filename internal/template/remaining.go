// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Remaining lists the Templates of a ProxmoxTemplate that the view still shows, and why
// they exist. Unreachable Clusters are listed because they may have more. Templates on Hosts
// that were removed from their Cluster are not listed: they cannot be deleted.
func (p *Provider) Remaining(desired Desired) (remains []string) {
	view := p.inventory.View()
	for _, region := range slices.Sorted(maps.Keys(p.clients)) {
		if view.Snapshots[region] == nil || view.Failures[region] != nil {
			remains = append(remains, fmt.Sprintf("region %s is unreachable", region))
		}
	}
	for _, e := range ListOwned(view, p.kubeCluster, desired.UID) {
		if p.isHostRemoved(view, e.Region, e.Host) {
			continue
		}
		s := p.tracker.get(HostKey{UID: desired.UID, Region: e.Region, Host: e.Host})
		text := fmt.Sprintf("%s: template %d", p.displayName(e.Region, e.Host), e.VMID)
		switch host, member := view.Host(e.Region, e.Host); {
		case !member:
			text += " is on a host that is not in the Proxmox cluster"
		case host.Has(inventory.Off):
			text += " is on an offline host"
		case s.warning != "":
			text = p.displayName(e.Region, e.Host) + ": " + s.warning
		case s.failure != "":
			text += ": " + s.failure
		}
		remains = append(remains, text)
	}
	return append(remains, p.remainingOffline(view, desired)...)
}

// remainingOffline lists the VMs on offline Hosts that are, or may be, unfinished Templates of
// a ProxmoxTemplate.
func (p *Provider) remainingOffline(view inventory.View, desired Desired) (remains []string) {
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		snapshot := view.Snapshots[region]
		for _, vmid := range slices.Sorted(maps.Keys(snapshot.Guests)) {
			guest := snapshot.Guests[vmid]
			if host, member := view.Host(region, guest.Host); !member || !host.Has(inventory.Off) || !p.mayBeUnfinished(guest, desired.Name) {
				continue
			}
			text := "may belong to it and"
			if guest.Config != nil {
				if _, owned := readOwnedMark(p.kubeCluster, desired.UID, vmid, *guest.Config); !owned {
					continue
				}
				text = "belongs to it and"
			}
			remains = append(remains, fmt.Sprintf("%s: VM %d %s is on an offline host", p.displayName(region, guest.Host), vmid, text))
		}
	}
	return remains
}

// isHostRemoved reports whether a Host was removed permanently from its Cluster.
func (p *Provider) isHostRemoved(view inventory.View, region, host string) bool {
	return view.IsRemoved(observed.HostName{Region: region, Host: host}, p.settings.HostRemovedAfter)
}

// reportAbandoned reports the Templates that remain on Hosts that were removed from their
// Cluster.
func (p *Provider) reportAbandoned(desired Desired) {
	view := p.inventory.View()
	for _, e := range ListOwned(view, p.kubeCluster, desired.UID) {
		if !p.isHostRemoved(view, e.Region, e.Host) {
			continue
		}
		r := &hostReconciler{Provider: p, HostKey: HostKey{UID: desired.UID, Region: e.Region, Host: e.Host}, desired: desired}
		r.publish(corev1.EventTypeWarning, v1alpha1.EventTemplateDiskNotDeleted, fmt.Sprintf(
			"%[1]s: template %[2]d is not deleted, because its host was removed from the Proxmox cluster; left are its disks on shared storages, which you find on another host with pvesm list STORAGE --vmid %[2]d and delete with pvesm free VOLUME, and its configuration, which keeps the VMID in use until you delete it: rm /etc/pve/nodes/%[3]s/qemu-server/%[2]d.conf",
			p.displayName(e.Region, e.Host), e.VMID, e.Host))
	}
}
