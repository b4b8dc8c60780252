// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"maps"
	"strings"
)

// Permissions maps an ACL path to the privileges held there. The value tells
// whether the privilege propagates to paths below.
type Permissions map[string]map[string]bool

// Has tells whether a privilege is held on a path: there, or by propagation from
// the nearest path above that Proxmox lists. It lists the roots of all kinds of
// paths, every path with an ACL, and the members of pools.
func (p Permissions) Has(path, privilege string) bool {
	at := p.Source(path)
	propagates, held := p[at][privilege]
	return held && (propagates || at == path)
}

// Source is the listed path that a path's privileges come from: itself, or the
// nearest one above; empty where nothing is held at all.
func (p Permissions) Source(path string) string {
	for at := path; at != ""; at = parent(at) {
		if _, listed := p[at]; listed {
			return at
		}
	}
	return ""
}

// Origin is where a path's privileges were most likely granted: Proxmox also lists
// paths that only inherit theirs.
func (p Permissions) Origin(path string) string {
	source := p.Source(path)
	for {
		above := p.Source(parent(source))
		if above == "" || !maps.Equal(p[above], p[source]) {
			return source
		}
		source = above
	}
}

// parent is the path above; empty above the root.
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

// HasBelow tells whether a privilege is held on a path or anywhere below it.
func (p Permissions) HasBelow(path, privilege string) bool {
	if p.Has(path, privilege) {
		return true
	}
	for at, privileges := range p {
		if _, held := privileges[privilege]; held && strings.HasPrefix(at, strings.TrimSuffix(path, "/")+"/") {
			return true
		}
	}
	return false
}
