// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"maps"
	"slices"
	"strings"
)

// Permissions maps an ACL path to the user's privileges on it. The value reports
// whether the privilege propagates to paths below. A path without privileges is denied:
// an ACL, such as one with role NoAccess, cancels what the path inherits.
type Permissions map[string]map[string]bool

// alwaysListed are paths that Proxmox lists for all users who have a privilege on them.
var alwaysListed = []string{"/nodes", "/pool", "/sdn", "/storage", "/vms"}

// denyUnlisted denies the paths that Proxmox would list if they inherited privileges.
// Other denied paths look the same as those that inherit; see HasAccess.
func (p Permissions) denyUnlisted() {
	if !slices.Contains(slices.Collect(maps.Values(p["/"])), true) {
		return
	}
	for _, path := range alwaysListed {
		if _, listed := p[path]; !listed {
			p.Deny(path)
		}
	}
}

// Deny adds a denied path.
func (p Permissions) Deny(path string) { p[path] = map[string]bool{} }

// IsDenied reports whether an ACL on a path cancels what it inherits.
func (p Permissions) IsDenied(path string) bool {
	privileges, listed := p[path]
	return listed && len(privileges) == 0
}

// Has reports whether the user has a privilege on a path: directly, or by propagation
// from the nearest listed path above. Proxmox lists the roots of all kinds of paths,
// every path with an ACL, and the members of pools.
func (p Permissions) Has(path, privilege string) bool {
	at := p.Source(path)
	propagates, ok := p[at][privilege]
	return ok && (propagates || at == path)
}

// Source returns the listed path that a path's privileges come from: itself, or the
// nearest one above. It returns "" if there is none.
func (p Permissions) Source(path string) string {
	for at := path; at != ""; at = parent(at) {
		if _, listed := p[at]; listed {
			return at
		}
	}
	return ""
}

// Origin returns the path on which a path's privileges were most likely granted:
// Proxmox also lists paths that only inherit theirs. It returns "" if the path has no
// privileges: those granted above without propagation do not apply to it.
func (p Permissions) Origin(path string) string {
	source := p.Source(path)
	if _, listed := p[path]; !listed && len(p.Propagated(source)) == 0 {
		return ""
	}
	for {
		above := p.Source(parent(source))
		if inherited := p.Propagated(above); len(inherited) == 0 || !maps.Equal(inherited, p[source]) {
			return source
		}
		source = above
	}
}

// Propagated returns the privileges on a path that paths below inherit.
func (p Permissions) Propagated(path string) map[string]bool {
	propagated := maps.Clone(p[path])
	maps.DeleteFunc(propagated, func(_ string, propagates bool) bool { return !propagates })
	return propagated
}

// parent returns the path above, or "" for the root.
func parent(path string) string {
	switch i := strings.LastIndex(path, "/"); {
	case path == "/" || i < 0:
		return ""
	case i == 0:
		return "/"
	default:
		return path[:i]
	}
}

// HasBelow reports whether the user has a privilege on a path or anywhere below it.
func (p Permissions) HasBelow(path, privilege string) bool {
	if p.Has(path, privilege) {
		return true
	}
	for at, privileges := range p {
		if _, ok := privileges[privilege]; ok && strings.HasPrefix(at, strings.TrimSuffix(path, "/")+"/") {
			return true
		}
	}
	return false
}
