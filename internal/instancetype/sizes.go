// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// keepSizes returns the exact sizes of the Claims, and those before for some more minutes.
func (p *Provider) keepSizes(before map[string]time.Time, claims []karpv1.NodeClaim, now time.Time) map[string]time.Time {
	sizes := map[string]time.Time{}
	for i := range claims {
		if name := claims[i].Labels[corev1.LabelInstanceTypeStable]; p.isExactSize(name) {
			sizes[name] = time.Time{}
		}
	}
	for name, planned := range before {
		if planned.IsZero() {
			planned = now // its pods may need a Node of the same size
		}
		// A Claim gets its label some time after its VM was planned.
		if _, ok := sizes[name]; !ok && now.Sub(planned) < nodesRefreshInterval {
			sizes[name] = planned
		}
	}
	return sizes
}

// getSize returns Karpenter's object of an exact size and adds it to the sizes of existing Nodes. It
// returns false if the name is not that of a size.
func (p *Provider) getSize(nodeClass *v1alpha1.ProxmoxNodeClass, name string) (*cloudprovider.InstanceType, bool) {
	if !p.isExactSize(name) {
		return nil, false
	}
	p.nodes.mu.Lock()
	if _, known := p.nodes.sizes[name]; !known {
		p.nodes.generation.Add(1)
	}
	p.nodes.sizes[name] = p.deps.Clock.Now()
	p.nodes.mu.Unlock()
	l := p.currentList(nodeClass, "")
	n, ok := l.index()[name]
	if !ok {
		return nil, false
	}
	return l.types[n], true
}

// isExactSize reports whether the name is that of a size that the catalog does not have.
func (p *Provider) isExactSize(name string) bool {
	if _, ok := p.deps.Catalog.byName[strings.TrimSuffix(name, arm64Suffix)]; ok {
		return false
	}
	_, ok := parseSize(name)
	return ok
}

// withSizesOfNodes appends the exact sizes of Nodes that are not listed already. mixed is whether the
// class has Hosts of both architectures.
func (p *Provider) withSizesOfNodes(variants []variant, s sizing, mixed bool) []variant {
	p.nodes.mu.Lock()
	names := slices.Sorted(maps.Keys(p.nodes.sizes))
	p.nodes.mu.Unlock()
	listed := len(variants)
	for _, name := range names {
		if slices.ContainsFunc(variants[:listed], func(v variant) bool { return v.Name == name }) {
			continue
		}
		if t, ok := parseSize(name); ok {
			isARM64 := strings.HasSuffix(name, arm64Suffix)
			v := variant{Type: t, price: p.deps.Pricing.Price(t, 0), exact: true, unused: !s.exact || isARM64 && !mixed}
			switch {
			case mixed && isARM64:
				v.arch = karpv1.ArchitectureArm64
			case mixed:
				v.arch = karpv1.ArchitectureAmd64
			}
			variants = append(variants, v)
		}
	}
	return variants
}
