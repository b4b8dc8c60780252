// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
)

// checkTags checks whether the token may set the tags of the class. They replace those
// of the template, so removing inherited tags must be allowed too.
func checkTags(z zone) *problem {
	if len(z.class.Spec.Tags) == 0 {
		return nil
	}
	claim, in := z.sample()
	if _, err := instance.RenderTags(claim, z.class, in); err != nil {
		return &problem{message: err.Error(), reason: v1alpha1.ReasonTextInvalid}
	}
	z.facts(poll.FactOptions) // which ForbiddenTag reads
	// What expressions render to is not known yet.
	literal := slices.DeleteFunc(slices.Clone(z.class.Spec.Tags), instance.IsExpression)
	desired, inherited := lower(literal), []string{}
	if z.config != nil {
		inherited = lower(z.config.Tags())
	}
	for _, tag := range desired {
		if slices.Contains(inherited, tag) {
			continue
		}
		if reason := privileges.ForbiddenTag(z.snapshot, tag); reason != "" {
			return z.regionProblem("spec.tags: tag %q is not allowed: %s", tag, reason)
		}
	}
	for _, tag := range inherited {
		if slices.Contains(desired, tag) {
			continue
		}
		if reason := privileges.ForbiddenTag(z.snapshot, tag); reason != "" {
			return z.hostProblem("spec.tags would remove tag %q of template %d, which is not allowed; add it to spec.tags, or: %s", tag, z.template.VMID, reason)
		}
	}
	return nil
}

func lower(tags []string) []string {
	out := make([]string, 0, len(tags))
	for _, tag := range tags {
		out = append(out, strings.ToLower(tag))
	}
	return out
}
