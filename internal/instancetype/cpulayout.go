// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"path"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// CPULayouts are the settings for NUMA and pinning layouts of VMs.
type CPULayouts struct {
	// Default applies to NodeClasses without spec.cpu.
	Default v1alpha1.CPULayout
	// Roots are the regions with a root login, for options that no token may set.
	Roots []string
}

// forClass returns the layout of a NodeClass's VMs and the tag of their slot templates.
func (c CPULayouts) forClass(nodeClass *v1alpha1.ProxmoxNodeClass) (layout placement.Layout, slotTag string) {
	cpu := c.Default
	if nodeClass.Spec.CPU != nil {
		cpu = *nodeClass.Spec.CPU
	}
	layout = placement.Layout{Bound: cpu.IsBound(), Exclusive: cpu.IsExclusive(), PageMiB: cpu.Hugepages.MiB()}
	return layout, SlotTag(nodeClass.Spec.InstanceTemplateRef.Name)
}

// SlotTag returns the tag of the slot templates that belong to a template object.
// Proxmox stores tags in lower case.
func SlotTag(template string) string { return observed.SlotTagPrefix + strings.ToLower(template) }

// pinningSupport returns how VMs that are cloned from a template can be pinned.
func (c CPULayouts) pinningSupport(region, slotTag string, template proxmox.VMConfig) placement.PinningSupport {
	script := template.Options["hookscript"]
	return placement.PinningSupport{
		SlotTag:   slotTag,
		Hook:      strings.HasPrefix(path.Base(script[strings.Index(script, ":")+1:]), placement.HookName),
		Root:      slices.Contains(c.Roots, region),
		Hugepages: template.Compute().Hugepages(),
	}
}

// withPinningSupport sets how VMs can be pinned in each zone.
func (c CPULayouts) withPinningSupport(params offeringParams, view inventory.View) offeringParams {
	if !params.cpu.Bound {
		return params
	}
	for n, z := range params.zones {
		if guest, ok := view.Guest(z.Region, z.template); ok && guest.Config != nil {
			params.zones[n].pinning = c.pinningSupport(z.Region, params.slotTag, *guest.Config)
		}
	}
	return params
}

// UnsupportedReason returns why a Host can never provide the CPU layout of the
// NodeClass, regardless of its free capacity; empty if it can. The template is the one
// on that Host.
func (p *Provider) UnsupportedReason(view inventory.View, nodeClass *v1alpha1.ProxmoxNodeClass, template v1alpha1.TemplateZone) string {
	layout, slotTag := p.deps.CPULayouts.forClass(nodeClass)
	guest, ok := view.Guest(template.Region, template.VMID)
	if !layout.Bound || !ok || guest.Config == nil {
		return "" // a missing template is reported by another check
	}
	return placement.UnsupportedReason(view.Cells(template.Region, template.Host), layout, p.deps.CPULayouts.pinningSupport(template.Region, slotTag, *guest.Config))
}
