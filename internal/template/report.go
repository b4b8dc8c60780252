// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Report is the progress of a ProxmoxTemplate, as reported in its conditions.
type Report struct {
	// Zones are the Hosts on which VMs can be cloned, each with its Template.
	Zones []v1alpha1.TemplateZone
	// Complete is whether every Host has the desired Template.
	Complete bool
	// Failing is whether an error must be fixed before it can be complete.
	Failing bool
	// Message lists the reason for each Host that is not complete.
	Message string
	// Unread is whether a Cluster has not been polled yet.
	Unread bool
	// ImageID is the name of the image file.
	ImageID string
	// Usable is whether VMs could start on one of the Zones: the others lack a bridge.
	Usable bool
	// FailedFacts are the facts by region that caused problems.
	FailedFacts map[string][]poll.Fact
}

// Report returns the progress of a ProxmoxTemplate. previous are the zones in its status.
func (p *Provider) Report(desired Desired, previous []string) Report {
	rollout := p.rollout(desired)
	r := Report{Complete: true, FailedFacts: map[string][]poll.Fact{}}
	settled := true
	var parts []string
	image, err := NewImage(desired.Spec.SourceImage, p.kubeCluster)
	parts = append(parts, r.addImage(image, desired, err)...)
	if desired.Problem != "" && desired.BootDataHash != "" {
		// Without the hash it is a blocker of every Host.
		r.Complete, r.Failing, parts = false, true, append(parts, desired.Problem)
	}
	parts = append(parts, p.reportClusters(&r, rollout)...)
	parts = append(parts, p.reportBlockers(&r, rollout)...)
	for _, location := range rollout.Locations {
		s := p.tracker.get(HostKey{UID: desired.UID, Region: location.Region, Host: location.Host})
		ready := rollout.isReady(location)
		text := ""
		switch {
		case ready && location.NetworkProblem != "":
			r.Complete = false // in reportBlockers
		case ready && s.failure != "":
			text, r.Failing = s.failure, true // of an update in place or a deletion
		case ready, err != nil, location.Blocker() != "": // the last one is in reportBlockers
		default:
			text = s.message()
			r.Failing = r.Failing || s.failure != ""
			settled = settled && s.failure != "" && s.hash == desired.Hash
		}
		r.Complete = r.Complete && ready && text == ""
		parts = append(parts, p.withHost(location, text, s.warning)...)
	}
	r.Message = strings.Join(parts, "; ")
	r.Zones = rollout.selectPerHost(previous, settled)
	r.Usable = slices.ContainsFunc(r.Zones, func(zone v1alpha1.TemplateZone) bool {
		snapshot := rollout.View.Snapshots[zone.Region]
		return snapshot == nil || networkProblem(snapshot, zone.Host, desired) == ""
	})
	return r
}

// addImage adds the image, or why there is none, and returns the problems.
func (r *Report) addImage(image Image, desired Desired, err error) []string {
	r.ImageID = image.Name
	r.Complete = err == nil
	switch {
	case desired.ChecksumProblem != "":
		// With a checksum that was read earlier, building continues.
		r.Failing = err != nil
		return []string{desired.ChecksumProblem}
	case err != nil:
		r.Failing = !errors.Is(err, ErrChecksumUnresolved)
		return []string{err.Error()}
	}
	return nil
}

// withHost returns the texts that are not empty, each with the name of its Host.
func (p *Provider) withHost(location Location, texts ...string) []string {
	var parts []string
	for _, text := range texts {
		if text != "" {
			parts = append(parts, p.displayName(location.Region, location.Host)+": "+text)
		}
	}
	return parts
}

// reportBlockers marks the report as failing if Templates cannot be built at some Locations
// or their VMs could not start there, and returns the reasons, each once with its Hosts.
func (p *Provider) reportBlockers(r *Report, rollout Rollout) []string {
	desired := rollout.Desired
	if len(rollout.Locations) == 0 && r.Complete && !desired.Deleted {
		r.Complete, r.Failing = false, true
		return []string{"no template is built, because all hosts are excluded by settings; set excluded to false for a host"}
	}
	required := map[string][]privileges.Required{}
	for _, location := range rollout.Locations {
		required[location.Region] = append(required[location.Region], location.Required...)
	}
	messages := map[string]string{} // about missing privileges, by region
	var reasons []string
	hosts := map[string][]string{}
	for _, location := range rollout.Locations {
		reason := location.Blocker()
		if rollout.isReady(location) {
			reason = location.NetworkProblem
		} else if location.MissingPrivileges != "" {
			if messages[location.Region] == "" {
				messages[location.Region] = privileges.NewAccount(rollout.View.Snapshots[location.Region].Facts).Message(required[location.Region])
			}
			reason = messages[location.Region]
		}
		if reason == "" {
			continue
		}
		r.Failing = true
		if reason != location.Problem && reason != location.Maintenance && reason != desired.Problem {
			r.FailedFacts[location.Region] = append(r.FailedFacts[location.Region], Facts(desired, location.Host)...)
		}
		if hosts[reason] == nil {
			reasons = append(reasons, reason)
		}
		hosts[reason] = append(hosts[reason], p.displayName(location.Region, location.Host))
	}
	for n, reason := range reasons {
		reasons[n] = strings.Join(hosts[reason], ", ") + ": " + reason
	}
	return reasons
}

// reportClusters marks the report incomplete if a Cluster is unread, failing or unknown,
// and returns the reasons.
func (p *Provider) reportClusters(r *Report, rollout Rollout) []string {
	view, desired := rollout.View, rollout.Desired
	regions := p.inventory.Regions()
	if desired.Spec.Region != "" && !slices.Contains(regions, desired.Spec.Region) {
		r.Complete, r.Failing = false, true
		return []string{UnknownRegion(desired.Spec.Region, regions)}
	}
	var parts []string
	for _, region := range regions {
		if !desired.appliesTo(region) {
			continue
		}
		if failure := view.Failures[region]; failure != nil {
			r.Complete, r.Failing = false, true
			if poll, ok := errors.AsType[*inventory.PollError](failure); ok {
				failure = poll.Err // its count of failures would change the condition at each poll
			}
			parts = append(parts, fmt.Sprintf("region %s: %v", region, proxmox.Explain(failure)))
		} else if view.Snapshots[region] == nil {
			r.Complete, r.Unread = false, true
		}
	}
	return parts
}

// UnknownRegion describes that the spec names a region that is not in the cloud config.
func UnknownRegion(region string, known []string) string {
	return fmt.Sprintf("spec.region %q is not in the cloud config, which has %s", region, strings.Join(known, ", "))
}

// displayName returns the name of a Host, with the region if there are several.
func (p *Provider) displayName(region, host string) string {
	if len(p.clients) > 1 {
		return region + "/" + host
	}
	return host
}
