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
	// unused is set for a variant that is listed only because Nodes may have its name:
	// without it they would drift. It is a variant for arm64 while the NodeClass has no Hosts
	// of both architectures, or an exact size while the NodeClass has no exact sizes.
	unused bool
	// exact is whether it is the exact size of a Node.
	exact bool
}

// contains reports whether a VM of the other variant is a part of one of this variant.
func (v variant) contains(other variant) bool {
	return v.arch == other.arch && v.Spot == other.Spot && v.CPUs >= other.CPUs && v.MemoryBytes >= other.MemoryBytes
}

// isFor reports whether VMs of the variant are created in the zone. Offerings in other zones
// are listed as unavailable: Nodes there may have the name from a time when the variant was
// for all Hosts.
func (v variant) isFor(z zone) bool { return !v.unused && z.isOf(v.arch) }

// isOf reports whether the Host has the architecture. An empty one means any.
func (z zone) isOf(arch string) bool {
	return arch == "" || arch == cmp.Or(z.arch, karpv1.ArchitectureAmd64)
}

// variants returns the types of a list: first one for each type of the catalog, in the same
// order, then larger ones that the NodeClass allows, then those for arm64, then the sizes of
// existing Nodes.
func (p *Provider) variants(params offeringParams) []variant {
	zones, types, prices := params.zones, p.deps.Catalog.Types(), p.prices
	for _, t := range params.sizing.largerTypes(p.deps.Catalog) {
		types, prices = append(slices.Clip(types), t), append(slices.Clip(prices), p.deps.Pricing.Price(t, 0))
	}
	mixed := hasTemplateFor(zones, karpv1.ArchitectureAmd64) && hasTemplateFor(zones, karpv1.ArchitectureArm64)
	out := make([]variant, 0, len(p.prices))
	for n, t := range types {
		v := variant{Type: t, price: prices[n]}
		switch {
		case !mixed:
		case strings.HasSuffix(t.Name, arm64Suffix):
			v.arch = karpv1.ArchitectureArm64
		case p.deps.Catalog.hasARM64(t):
			v.arch = karpv1.ArchitectureAmd64
		}
		out = append(out, v)
	}
	hasARM64 := slices.ContainsFunc(zones, func(z zone) bool { return z.arch != karpv1.ArchitectureAmd64 })
	for n, t := range types {
		if _, listed := p.deps.Catalog.byName[t.Name+arm64Suffix]; hasARM64 && p.deps.Catalog.hasARM64(t) && !listed {
			t.Name += arm64Suffix
			out = append(out, variant{Type: t, price: prices[n], arch: karpv1.ArchitectureArm64, unused: !mixed})
		}
	}
	return p.withSizesOfNodes(out, params.sizing, mixed)
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

// AreMixed reports whether types are for both architectures.
func AreMixed(names []string) bool {
	isARM64 := func(name string) bool { return strings.HasSuffix(name, arm64Suffix) }
	isOther := func(name string) bool { return !isARM64(name) }
	return slices.ContainsFunc(names, isARM64) && slices.ContainsFunc(names, isOther)
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
