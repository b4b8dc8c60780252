// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"path"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// CPULayouts say how VMs lie on their Hosts, beside what their NodeClass says.
type CPULayouts struct {
	// Default is for NodeClasses that say nothing.
	Default v1alpha1.CPULayout
	// Roots are the regions that have a login of root for what no token may set.
	Roots []string
}

// of is how VMs of a NodeClass must lie, and the tag of their slot templates.
func (c CPULayouts) of(nodeClass *v1alpha1.ProxmoxNodeClass) (layout placement.Layout, slotTag string) {
	cpu := c.Default
	if nodeClass.Spec.CPU != nil {
		cpu = *nodeClass.Spec.CPU
	}
	layout = placement.Layout{Bound: cpu.Bound(), Exclusive: cpu.Exclusive(), PageMiB: cpu.Hugepages.MiB()}
	return layout, SlotTag(nodeClass.Spec.InstanceTemplateRef.Name)
}

// SlotTag marks the slot templates that belong to a template object. Proxmox has
// tags in lower case only.
func SlotTag(template string) string { return inventory.SlotTagPrefix + strings.ToLower(template) }

// means are those of a zone, by the template that its VMs are cloned from.
func (c CPULayouts) means(region, slotTag string, template proxmox.VMConfig) placement.PinningSupport {
	script := template.Options["hookscript"]
	return placement.PinningSupport{
		SlotTag:   slotTag,
		Hook:      strings.HasPrefix(path.Base(script[strings.Index(script, ":")+1:]), placement.HookName),
		Root:      slices.Contains(c.Roots, region),
		Hugepages: template.Compute().Hugepages(),
	}
}

// withMeans adds to each zone what there is to lay VMs out as the class asks.
func (c CPULayouts) withMeans(l layout, view inventory.View) layout {
	if !l.cpu.Bound {
		return l
	}
	for n, z := range l.zones {
		if guest, ok := view.Guest(z.Region, z.template); ok && guest.Config != nil {
			l.zones[n].means = c.means(z.Region, l.slotTag, *guest.Config)
		}
	}
	return l
}

// Lacking tells why a Host can never lay VMs of the NodeClass out as it asks,
// whatever room it has; empty where it can. The template is the one on that Host.
func (p *Provider) UnsupportedReason(view inventory.View, nodeClass *v1alpha1.ProxmoxNodeClass, template v1alpha1.TemplateZone) string {
	layout, slotTag := p.deps.CPULayouts.of(nodeClass)
	guest, ok := view.Guest(template.Region, template.VMID)
	if !layout.Bound || !ok || guest.Config == nil {
		return "" // that there is no template, others tell
	}
	return placement.UnsupportedReason(view.Cells(template.Region, template.Host), layout, p.deps.CPULayouts.means(template.Region, slotTag, *guest.Config))
}

// Bound tells whether VMs of the NodeClass are tied to cells or cores of their Host.
func (p *Provider) IsBound(nodeClass *v1alpha1.ProxmoxNodeClass) bool {
	layout, _ := p.deps.CPULayouts.of(nodeClass)
	return layout.Bound
}
