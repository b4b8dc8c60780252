// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// arm64Suffix ends the name of a type for arm64 Hosts in a NodeClass that also has amd64
// Hosts.
const arm64Suffix = "-" + karpv1.ArchitectureArm64

// variant is a type of a list. Karpenter counts the DaemonSets of an instance type, not of
// its offerings, so a NodeClass with Hosts of both architectures has a variant of each type
// for each of them. All other NodeClasses have one variant for all Hosts, with the name in
// the catalog.
type variant struct {
	Type
	price float64
	// arch is the architecture of the Hosts; empty if all have the same.
	arch string
	// unused is set if the NodeClass has no Hosts of both architectures now. The variant is
	// listed because Nodes may have its name: without it they would drift.
	unused bool
}

// isFor reports whether VMs of the variant are created in the zone. Offerings in other zones
// are listed as unavailable: Nodes there may have the name from a time when the variant was
// for all Hosts.
func (v variant) isFor(z zone) bool { return !v.unused && z.isOf(v.arch) }

// isOf reports whether the Host has the architecture. An empty one means any.
func (z zone) isOf(arch string) bool {
	return arch == "" || arch == cmp.Or(z.arch, karpv1.ArchitectureAmd64)
}

// variants returns the types of a list with these zones: first one for each type of the
// catalog, in the same order, then those for arm64.
func (p *Provider) variants(zones []zone) []variant {
	mixed := hasTemplateFor(zones, karpv1.ArchitectureAmd64) && hasTemplateFor(zones, karpv1.ArchitectureArm64)
	out := make([]variant, 0, len(p.prices))
	for n, t := range p.deps.Catalog.Types() {
		v := variant{Type: t, price: p.prices[n]}
		switch {
		case !mixed:
		case strings.HasSuffix(t.Name, arm64Suffix):
			v.arch = karpv1.ArchitectureArm64
		case p.deps.Catalog.hasARM64(t):
			v.arch = karpv1.ArchitectureAmd64
		}
		out = append(out, v)
	}
	if !slices.ContainsFunc(zones, func(z zone) bool { return z.arch != karpv1.ArchitectureAmd64 }) {
		return out
	}
	for n, t := range p.deps.Catalog.Types() {
		if _, listed := p.deps.Catalog.byName[t.Name+arm64Suffix]; p.deps.Catalog.hasARM64(t) && !listed {
			t.Name += arm64Suffix
			out = append(out, variant{Type: t, price: p.prices[n], arch: karpv1.ArchitectureArm64, unused: !mixed})
		}
	}
	return out
}

// architectures returns the architectures of types that are for the zones: those where a VM
// can be created, or else all. It is never empty.
func architectures(zones []zone) []string {
	var usable, known []string
	for _, z := range zones {
		if z.arch != "" {
			known = append(known, z.arch)
		}
		if z.arch != "" && z.template != 0 {
			usable = append(usable, z.arch)
		}
	}
	if len(usable) > 0 {
		return usable
	}
	return orDefault(known, karpv1.ArchitectureAmd64)
}

func hasTemplateFor(zones []zone, arch string) bool {
	return slices.ContainsFunc(zones, func(z zone) bool { return z.template != 0 && z.arch == arch })
}

// hasARM64 reports whether the type has a variant for arm64 with another name. A type of
// the catalog whose name ends in -arm64 is itself the variant. A type whose name would be
// longer than a label has none and remains one for all Hosts.
func (c Catalog) hasARM64(t Type) bool {
	return !strings.HasSuffix(t.Name, arm64Suffix) && len(t.Name)+len(arm64Suffix) <= validation.LabelValueMaxLength
}

// variantIn returns the variant of the same size that is for the zone; v if there is none.
func (l *list) variantIn(v variant, z zone) variant {
	size := strings.TrimSuffix(v.Name, arm64Suffix)
	for _, other := range l.variants {
		if !v.isFor(z) && other.isFor(z) && strings.TrimSuffix(other.Name, arm64Suffix) == size {
			return other
		}
	}
	return v
}
