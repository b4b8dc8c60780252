// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// zone is all that is known about one Host as a place for VMs of one class. Checks
// look at it and ask nobody.
type zone struct {
	region, host string
	class        *v1alpha1.ProxmoxNodeClass
	snapshot     *inventory.Snapshot
	source       templateSource
	// template that serves the Host; its config is nil while it is not to be seen.
	template *v1alpha1.TemplateZone
	config   *proxmox.VMConfig
	// tooSlow says why clones take too long here, almostTooSlow that they are close to
	// it, as learned; empty when they do not.
	tooSlow, almostTooSlow string
	// unboundable says why VMs cannot be tied to cells or cores as the class asks.
	unboundable string
	// root: there is a login of root beside the token.
	root bool
	// before tells that the zone was usable when it was last checked.
	before bool
}

func (z zone) String() string { return z.region + "/" + z.host }

func (z zone) facts() *inventory.Facts { return z.snapshot.Facts }

func (z zone) online() bool { return z.snapshot.Hosts[z.host].Online }

// finding is what keeps a class from a zone, in words.
type finding struct {
	// where it is so: a Host, a region, or empty for all of the class.
	where string
	text  string
	// reason of the condition, where it is not that of the check.
	reason string
	// unknown is true when the matter could not be looked at yet.
	unknown bool
}

// onHost is a finding about this Host.
func (z zone) onHost(format string, args ...any) *finding {
	return &finding{where: z.String(), text: fmt.Sprintf(format, args...)}
}

// inRegion is a finding about the whole Cluster.
func (z zone) inRegion(format string, args ...any) *finding {
	return &finding{where: z.region, text: fmt.Sprintf(format, args...)}
}

// zones gathers all Hosts that the class may use. Clusters that were not read since
// the start are left to what was found before: a zone that vanished from the status
// would drift the Nodes in it.
func (c *Checker) zones(class *v1alpha1.ProxmoxNodeClass, view inventory.View, source templateSource) (zones []zone, unread []string) {
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
		_, hasRoot := c.deps.Roots[region]
		for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
			z := zone{region: region, host: host, class: class, snapshot: snapshot, source: source, root: hasRoot, before: selected[region+"/"+host]}
			if template, ok := source.zones[z.String()]; ok {
				z.template = &template
				z.config = snapshot.Guests[template.VMID].Config
				z.tooSlow, z.almostTooSlow = c.cloneVerdict(z)
				z.unboundable = c.deps.Types.UnsupportedReason(view, class, template)
			}
			zones = append(zones, z)
		}
	}
	return zones, unread
}

// cloneVerdict says why clones are too slow in a zone, or that they are close to it.
func (c *Checker) cloneVerdict(z zone) (refusal, warning string) {
	storage := z.class.Spec.BootDevice.Storage
	if storage == "" && z.config != nil {
		if disk, ok := z.config.BootDisk(); ok {
			storage = disk.Storage
		}
	}
	return c.deps.CloneTimes.Evaluate(z.region, z.host, storage)
}
