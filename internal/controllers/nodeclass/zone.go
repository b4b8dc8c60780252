// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/storageselection"
)

// zone is the state of one Host for VMs of one NodeClass. Checks read it without further
// requests.
type zone struct {
	region, host string
	class        *v1alpha1.ProxmoxNodeClass
	snapshot     *observed.Snapshot
	source       templateSource
	// template on the Host; nil if there is none. Its config is nil until it was read.
	template *v1alpha1.TemplateZone
	config   *proxmox.VMConfig
	// templateHostOffline is set if the Host of the template is offline and is not woken by a launch.
	templateHostOffline bool
	// cloneTooSlow is why clones take too long on this Host, cloneTimeWarning why they
	// almost do; empty if they do not.
	cloneTooSlow, cloneTimeWarning string
	// unsupportedLayout is why the Host cannot provide the CPU layout of the class.
	unsupportedLayout string
	// hasRoot is set if the region has a root login besides the token.
	hasRoot bool
	// outOfService is why the Host gets no VMs of any class, outOfServiceSince since when;
	// both are empty if it is in service.
	outOfService      string
	outOfServiceSince time.Time
	// wasSelected is set if the zone was usable at the last check.
	wasSelected bool
	// read are the Facts that checks have read.
	read *[]poll.Fact
}

func (z zone) String() string { return z.region + "/" + z.host }

// facts returns the Facts of the Cluster. It records which of them a check reads: they are read
// again while the check fails.
func (z zone) facts(read ...poll.Fact) *observed.Facts {
	*z.read = append(*z.read, read...)
	return z.snapshot.Facts
}

func (z zone) isOnline() bool { return z.snapshot.IsOnline(z.host) }

// problem is why a NodeClass cannot use a zone.
type problem struct {
	// scope is a Host, a region, or empty for the whole NodeClass.
	scope, region string
	message       string
	// reason of the condition, if it differs from that of the check.
	reason string
	// unknown is set if the required facts were not read yet.
	unknown bool
	// required are the privileges that VMs require, and missing those of them that the
	// account lacks; nil if the problem is another one.
	required, missing []privileges.Required
	account           privileges.Account
}

// hostProblem returns a problem of this Host.
func (z zone) hostProblem(format string, args ...any) *problem {
	return &problem{scope: z.String(), region: z.region, message: fmt.Sprintf(format, args...)}
}

// regionProblem returns a problem of the whole Cluster.
func (z zone) regionProblem(format string, args ...any) *problem {
	return &problem{scope: z.region, region: z.region, message: fmt.Sprintf(format, args...)}
}

// newZones returns the zones of all Hosts that the NodeClass may use, and the regions
// that were not read since the start. Those keep their status: removing a zone from it
// would drift the Nodes in the zone.
func (c *Checker) newZones(class *v1alpha1.ProxmoxNodeClass, view inventory.View, source templateSource) (zones []zone, unread []string) {
	selected := map[string]bool{}
	for _, entry := range class.Status.SelectedZones {
		if z, err := v1alpha1.ParseTemplateZone(entry); err == nil {
			selected[z.Zone()] = true
		}
	}
	for _, region := range c.regions(class) {
		snapshot := view.Snapshots[region]
		if snapshot == nil || snapshot.Facts == nil || snapshot.Facts.Permissions == nil {
			unread = append(unread, region)
			continue
		}
		_, hasRoot := c.deps.RootClients[region]
		for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
			z := zone{region: region, host: host, class: class, snapshot: snapshot, source: source, hasRoot: hasRoot, wasSelected: selected[region+"/"+host], read: &[]poll.Fact{}}
			z.outOfService, z.outOfServiceSince = outOfService(view, region, host)
			if template, ok := source.zones[z.String()]; ok {
				z.template = &template
				guest := snapshot.Guests[template.VMID]
				z.config = guest.Config
				owner, _ := view.Host(region, guest.Host)
				z.templateHostOffline = !owner.IsAvailable(inventory.Keep) && !owner.IsAvailable(inventory.Request)
				z.cloneTooSlow, z.cloneTimeWarning = c.evaluateCloneTime(z)
				z.unsupportedLayout = c.deps.Types.UnsupportedReason(view, class, template)
			}
			zones = append(zones, z)
		}
	}
	return zones, unread
}

// outOfService describes why a Host is out of service, and since when if Proxmox reports
// it; empty if the Host is in service.
func outOfService(view inventory.View, region, host string) (string, time.Time) {
	state, _ := view.Host(region, host)
	why := state.Obstacle(inventory.Keep)
	if why.Reason == "" {
		return "", time.Time{}
	}
	return "the host is " + why.Message, why.Since
}

// evaluateCloneTime returns why clones are too slow in a zone, or a warning that they
// almost are.
func (c *Checker) evaluateCloneTime(z zone) (tooSlow, warning string) {
	storage := z.class.Spec.BootDevice.Storage
	if storages, err := storageselection.Find(z.snapshot, z.host, z.class.Spec.BootDevice.StorageSelection()); err == nil && len(storages) > 0 {
		storage = storages[0]
	}
	if storage == "" && z.config != nil {
		if disk, ok := z.config.Drives().Boot(); ok {
			storage = disk.Storage
		}
	}
	return c.deps.Health.EvaluateClones(z.region, z.host, storage)
}

// storageRow returns a storage of this Host.
func (z zone) storageRow(storage string) (proxmox.StorageRow, bool) {
	row, ok := z.snapshot.Storages[observed.StorageKey{Host: z.host, Storage: storage}]
	return row, ok
}
