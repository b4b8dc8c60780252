// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mapping serves the resource mappings of the cluster: PCI and USB devices and directories by host.
package mapping

import (
	"fmt"
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/collection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// Mappings are the resource mappings by kind: "pci", "usb" and "dir".
type Mappings struct {
	kinds map[string]*collection.Collection
}

// New returns empty mappings.
func New(k *kernel.Kernel) *Mappings {
	m := &Mappings{kinds: map[string]*collection.Collection{}}
	for _, kind := range []string{"pci", "usb", "dir"} {
		m.kinds[kind] = collection.New(k, "id", kind+" mapping", func(r *api.Request, item api.Row) bool {
			return k.Access.HasAny(r.Who, fmt.Sprintf("/mapping/%s/%v", kind, item["id"]), "Mapping.Audit", "Mapping.Use", "Mapping.Modify")
		})
	}
	return m
}

// Routes returns the handlers of resource mappings by method.
func (m *Mappings) Routes() map[string]api.Handler {
	routes := map[string]api.Handler{"GET /cluster/mapping": api.Index("name", "pci", "usb", "dir")}
	for kind, c := range m.kinds {
		maps.Copy(routes, c.Handlers("/cluster/mapping/"+kind))
	}
	return routes
}

// AddMapping adds a resource mapping. It ignores kinds that do not exist.
func (m *Mappings) AddMapping(kind, id string, fields map[string]any) {
	if c := m.kinds[kind]; c != nil {
		c.Add(id, fields)
	}
}

// Has reports whether a mapping exists. The caller holds the mutex.
func (m *Mappings) Has(kind, id string) bool { return m.kinds[kind].Has(id) }

// Paths lists the paths of a mapping on a host in the mapping's order. The caller holds the mutex.
func (m *Mappings) Paths(kind, id, host string) []string {
	var paths []string
	entries, _ := m.kinds[kind].Field(id, "map").([]string)
	for _, entry := range entries {
		if fields := qm.ParseFields(entry); fields["node"] == host {
			paths = append(paths, fields["path"])
		}
	}
	return paths
}
