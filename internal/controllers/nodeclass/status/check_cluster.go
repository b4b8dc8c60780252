// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// securityGroups looks whether the class's groups exist. Proxmox takes rules for
// groups that do not, and the VM is then closed to all.
func securityGroups(z zone) *finding {
	have := z.facts().SecurityGroups
	if have == nil {
		return nil
	}
	var missing []string
	for _, group := range z.class.Spec.SecurityGroups {
		if !have[group.Name] && !slices.Contains(missing, group.Name) {
			missing = append(missing, group.Name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	commands := make([]string, 0, len(missing))
	for _, group := range missing {
		commands = append(commands, "pvesh create /cluster/firewall/groups --group "+group)
	}
	return z.inRegion("spec.securityGroups: %s not there; run: %s, and give it rules", isOrAre("security group", missing), strings.Join(commands, " && "))
}

func isOrAre(noun string, names []string) string {
	if len(names) == 1 {
		return fmt.Sprintf("%s %q is", noun, names[0])
	}
	return fmt.Sprintf("%ss %q are", noun, names)
}

// pool looks whether the class's resource pool exists.
func pool(z zone) *finding {
	name := z.class.Spec.ResourcePool
	if name == "" {
		return nil
	}
	switch exists, known := z.facts().Pools[name]; {
	case !known:
		f := z.inRegion("spec.resourcePool %q was not looked up yet", name)
		f.unknown = true
		return f
	case !exists:
		return z.inRegion("spec.resourcePool %q does not exist; run: pveum pool add %s", name, name)
	}
	return nil
}

func poolFacts(z zone) []inventory.Fact {
	if z.class.Spec.ResourcePool == "" {
		return nil
	}
	return []inventory.Fact{inventory.FactPool(z.class.Spec.ResourcePool)}
}

// tags looks whether the cluster lets us write the class's tags. They replace those
// of the Template, so that what goes with it counts as well; one that is refused
// fails the whole write.
func tags(z zone) *finding {
	if len(z.class.Spec.Tags) == 0 || z.facts().Permissions.Has("/", "Sys.Modify") {
		return nil
	}
	want, inherited := lower(z.class.Spec.Tags), []string{}
	if z.config != nil {
		inherited = lower(z.config.Tags())
	}
	for _, tag := range want {
		if slices.Contains(inherited, tag) {
			continue
		}
		if why := forbiddenTag(z, tag); why != "" {
			return z.inRegion("spec.tags: tag %q may not be set: %s", tag, why)
		}
	}
	for _, tag := range inherited {
		if slices.Contains(want, tag) {
			continue
		}
		if why := forbiddenTag(z, tag); why != "" {
			return z.onHost("spec.tags would take tag %q of template %d away, which is not allowed; add it to spec.tags, or: %s", tag, z.template.VMID, why)
		}
	}
	return nil
}

// forbiddenTag says why a tag can be neither set nor removed without Sys.Modify on
// /, and what would help.
func forbiddenTag(z zone, tag string) string {
	options := z.snapshot.Options
	switch {
	case slices.Contains(lower(options.RegisteredTags), tag):
		return "it is a registered tag, for which Proxmox wants Sys.Modify on /; remove it from registered-tags (Datacenter, Options)"
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
