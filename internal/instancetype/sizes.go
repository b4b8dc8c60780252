// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// sizesRefreshInterval is how often the sizes of existing Nodes are read again, to remove
// those that no Node has anymore.
const sizesRefreshInterval = 10 * time.Minute

// sizesInUse holds the exact sizes of Nodes. The types are listed because Karpenter replaces
// Nodes whose type is not listed, and reads their price there. They are available only where
// no larger type is: a Node on a full Host can be replaced by one of the same size.
type sizesInUse struct {
	generation atomic.Uint64
	refreshed  atomic.Int64 // Unix nanoseconds

	mu sync.Mutex
	// names have the time when the size was planned last, or its last Node was missing first; zero
	// if a Node has it.
	names map[string]time.Time
}

// RefreshSizes reads the types of all Claims, at most every few minutes. Without it, Karpenter
// would replace Nodes of exact size.
func (p *Provider) RefreshSizes(read func() ([]string, error)) error {
	now := p.deps.Clock.Now()
	if last := p.sizes.refreshed.Load(); last != 0 && now.UnixNano()-last < int64(sizesRefreshInterval) {
		return nil
	}
	found, err := read()
	if err != nil {
		return err
	}
	s := p.sizes
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]time.Time{}
	for _, name := range found {
		if p.isExactSize(name) {
			names[name] = time.Time{}
		}
	}
	for name, planned := range s.names {
		if planned.IsZero() {
			planned = now // its pods may need a Node of the same size
		}
		// A Claim gets its label some time after its VM was planned.
		if _, ok := names[name]; !ok && now.Sub(planned) < sizesRefreshInterval {
			names[name] = planned
		}
	}
	changed := !maps.EqualFunc(names, s.names, func(time.Time, time.Time) bool { return true })
	s.names = names
	if changed {
		s.generation.Add(1)
	}
	s.refreshed.Store(now.UnixNano())
	return nil
}

// getSize returns Karpenter's object of an exact size and adds it to the sizes in use. It
// returns false if the name is not that of a size.
func (p *Provider) getSize(nodeClass *v1alpha1.ProxmoxNodeClass, name string) (*cloudprovider.InstanceType, bool) {
	if !p.isExactSize(name) {
		return nil, false
	}
	p.sizes.mu.Lock()
	if _, known := p.sizes.names[name]; !known {
		p.sizes.generation.Add(1)
	}
	p.sizes.names[name] = p.deps.Clock.Now()
	p.sizes.mu.Unlock()
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

// withSizesInUse appends the exact sizes of Nodes that are not listed already. mixed is whether the
// class has Hosts of both architectures.
func (p *Provider) withSizesInUse(variants []variant, s sizing, mixed bool) []variant {
	p.sizes.mu.Lock()
	names := slices.Sorted(maps.Keys(p.sizes.names))
	p.sizes.mu.Unlock()
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
