// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"
)

// checkTags checks whether the token may set the tags of the class. They replace those
// of the template, so removing inherited tags must be allowed too. Proxmox rejects the
// whole update because of a single forbidden tag.
func checkTags(z zone) *problem {
	if len(z.class.Spec.Tags) == 0 || z.facts().Permissions.Has("/", "Sys.Modify") {
		return nil
	}
	desired, inherited := lower(z.class.Spec.Tags), []string{}
	if z.config != nil {
		inherited = lower(z.config.Tags())
	}
	for _, tag := range desired {
		if slices.Contains(inherited, tag) {
			continue
		}
		if reason := forbiddenTagReason(z, tag); reason != "" {
			return z.regionProblem("spec.tags: tag %q is not allowed: %s", tag, reason)
		}
	}
	for _, tag := range inherited {
		if slices.Contains(desired, tag) {
			continue
		}
		if reason := forbiddenTagReason(z, tag); reason != "" {
			return z.hostProblem("spec.tags would remove tag %q of template %d, which is not allowed; add it to spec.tags, or: %s", tag, z.template.VMID, reason)
		}
	}
	return nil
}

// forbiddenTagReason returns why a tag can be neither set nor removed without Sys.Modify
// on /, and how to allow it; empty if it is allowed.
func forbiddenTagReason(z zone, tag string) string {
	options := z.snapshot.Options
	switch {
	case slices.Contains(lower(options.RegisteredTags), tag):
		return "it is a registered tag, which requires Sys.Modify on /; remove it from registered-tags (Datacenter, Options)"
	case options.AllowedTags == nil || slices.Contains(lower(options.AllowedTags), tag):
		return ""
	case options.TagAccess == "existing":
		return "user-tag-access of the cluster allows existing tags only; set it once on any guest, or add it to user-allow-list (Datacenter, Options)"
	}
	return fmt.Sprintf("user-tag-access of the cluster is %q; run: pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=%s'",
		options.TagAccess, strings.Join(append(slices.Clone(options.AllowedTags), tag), ";"))
}

func lower(tags []string) []string {
	out := make([]string, 0, len(tags))
	for _, tag := range tags {
		out = append(out, strings.ToLower(tag))
	}
	return out
}
