// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"regexp"
)

// DirectoryMapping is a resource mapping: one name for a directory of several Hosts.
type DirectoryMapping struct {
	ID string
	// Paths by Host.
	Paths map[string]string
}

// DirectoryMappings lists the mappings that the caller may see. There are none before
// Proxmox VE 8.4.
func (c *client) DirectoryMappings(ctx context.Context) ([]DirectoryMapping, error) {
	var rows []struct {
		ID  string   `json:"id"`
		Map []string `json:"map"`
	}
	if err := c.get(ctx, at("/cluster/mapping/dir"), &rows); err != nil {
		return nil, fmt.Errorf("reading the directory mappings, %w", err)
	}
	mappings := make([]DirectoryMapping, 0, len(rows))
	for _, row := range rows {
		mapping := DirectoryMapping{ID: row.ID, Paths: map[string]string{}}
		for _, entry := range row.Map {
			p := ParseProperties(entry)
			mapping.Paths[p.Value("node")] = p.Value("path")
		}
		mappings = append(mappings, mapping)
	}
	return mappings, nil
}

var shareSlot = regexp.MustCompile(`^virtiofs(\d)$`)

// SharedDirectories are the directory mappings that a VM uses, in the order of their
// slots: "virtiofsN" in its config.
func (c VMConfig) SharedDirectories() []string {
	var ids []string
	for _, slot := range c.slots(shareSlot) {
		p := ParseProperties(c.Options[slot])
		id, ok := p.bare()
		if !ok {
			id = p.Value("dirid")
		}
		ids = append(ids, id)
	}
	return ids
}
