// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Report is what the conditions of a ProxmoxTemplate tell.
type Report struct {
	// Zones are the Hosts that VMs can be cloned on, each with its Template.
	Zones []v1alpha1.TemplateZone
	// Complete says that every Host has what the spec asks for.
	Complete bool
	// Failing says that something has to be mended before it can be complete.
	Failing bool
	// Message tells for each Host that is not complete why not.
	Message string
	// Unread says that not every Cluster was read yet.
	Unread bool
	// ImageID is the name of the image's file.
	ImageID string
}

// Report says how far the work on a ProxmoxTemplate is. Before are the zones that its
// status lists.
func (p *Provider) Report(w Desired, before []string) Report {
	view := p.Inventory.View()
	found := ListOwned(view, p.KubeCluster, w.UID)
	r := Report{Complete: true}
	settled := true
	var parts []string
	image, err := ImageOf(w.Spec.SourceImage, p.KubeCluster)
	if err != nil {
		r.Complete, r.Failing, parts = false, true, append(parts, err.Error())
	}
	r.ImageID = image.Name
	parts = append(parts, p.clusters(&r, view, w)...)
	for _, place := range Locations(view, w, found) {
		s := p.memory.read(HostKey{UID: w.UID, Region: place.Region, Host: place.Host})
		ready := slices.ContainsFunc(found, func(f Existing) bool { return place.has(w, f) })
		text := ""
		switch {
		case ready && s.failure != "":
			text, r.Failing = s.failure, true // of a change in place, or of a removal
		case ready:
		case place.Problem != "":
			text, r.Failing = place.Problem, true
		case err != nil:
		default:
			text = s.words()
			r.Failing = r.Failing || s.failure != ""
			settled = settled && s.failure != "" && s.hash == w.Hash
		}
		r.Complete = r.Complete && ready && text == ""
		for _, text := range []string{text, s.note} {
			if text != "" {
				parts = append(parts, p.name(place.Region, place.Host)+": "+text)
			}
		}
	}
	r.Message = strings.Join(parts, "; ")
	r.Zones = SelectPerHost(view, w, found, before, settled)
	return r
}

// clusters tells which Clusters keep the report from being complete.
func (p *Provider) clusters(r *Report, view inventory.View, w Desired) []string {
	regions := p.Inventory.Regions()
	if w.Spec.Region != "" && !slices.Contains(regions, w.Spec.Region) {
		r.Complete, r.Failing = false, true
		return []string{fmt.Sprintf("spec.region %q is not in the cloud config, which has %s", w.Spec.Region, strings.Join(regions, ", "))}
	}
	var parts []string
	for _, region := range regions {
		if !w.wants(region) {
			continue
		}
		if failure := view.Failures[region]; failure != nil {
			r.Complete, r.Failing = false, true
			if poll, ok := errors.AsType[*inventory.PollError](failure); ok {
				failure = poll.Err // without how often: the condition would change at each poll
			}
			parts = append(parts, fmt.Sprintf("region %s: %v", region, proxmox.Explain(failure)))
		} else if view.Snapshots[region] == nil {
			r.Complete, r.Unread = false, true
		}
	}
	return parts
}

// name of a Host: the region only where there are several.
func (p *Provider) name(region, host string) string {
	if len(p.Clients) > 1 {
		return region + "/" + host
	}
	return host
}

// Remains lists what Proxmox still has of a ProxmoxTemplate, as far as the view shows,
// and why. Clusters that do not answer may have more; Hosts that left theirs took
// their Templates with them.
func (p *Provider) Remaining(w Desired) (remains []string) {
	view := p.Inventory.View()
	for _, region := range slices.Sorted(maps.Keys(p.Clients)) {
		if view.Snapshots[region] == nil || view.Failures[region] != nil {
			remains = append(remains, fmt.Sprintf("region %s does not answer", region))
		}
	}
	for _, f := range ListOwned(view, p.KubeCluster, w.UID) {
		s := p.memory.read(HostKey{UID: w.UID, Region: f.Region, Host: f.Host})
		text := fmt.Sprintf("%s: template %d", p.name(f.Region, f.Host), f.VMID)
		switch {
		case !view.Snapshots[f.Region].Hosts[f.Host].Online:
			text += " is on a host that is offline"
		case s.note != "":
			text = p.name(f.Region, f.Host) + ": " + s.note
		case s.failure != "":
			text += ": " + s.failure
		}
		remains = append(remains, text)
	}
	return remains
}
