// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package privileges

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// ForbiddenTag returns why a tag can be neither set nor removed, and how to allow it; empty
// if it is allowed. Proxmox rejects the whole update because of a single forbidden tag.
func ForbiddenTag(snapshot *observed.Snapshot, tag string) string {
	options, tag := snapshot.Options, strings.ToLower(tag)
	switch {
	case snapshot.Facts.Permissions.Has("/", "Sys.Modify"):
		return ""
	case containsFold(options.RegisteredTags, tag):
		return "it is a registered tag, which requires Sys.Modify on /; remove it from registered-tags (Datacenter, Options)"
	case options.AllowedTags == nil || containsFold(options.AllowedTags, tag):
		return ""
	case options.TagAccess == "existing":
		return "user-tag-access of the cluster allows existing tags only; set it once on any guest, or add it to user-allow-list (Datacenter, Options)"
	}
	return fmt.Sprintf("user-tag-access of the cluster is %q; run: pvesh set /cluster/options --user-tag-access 'user-allow=list,user-allow-list=%s'",
		options.TagAccess, strings.Join(append(slices.Clone(options.AllowedTags), tag), ";"))
}

func containsFold(tags []string, tag string) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return strings.EqualFold(t, tag) })
}
