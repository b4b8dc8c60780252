// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
)

// PCIMapping is a resource mapping: one name for PCI devices of several Hosts.
// Several devices on one Host are alternatives; a VM starts with the first free one.
type PCIMapping struct {
	ID string
	// Mediated is true for mediated devices. The mapping does not contain their number.
	Mediated bool
	Devices  []PCIDevice
}

// PCIDevice is a device of a Host in a mapping.
type PCIDevice struct {
	Host string
	// Path is "0000:01:00.0", without the function to pass all functions through, or
	// several paths joined by ";".
	Path string
}

func (c clusterClient) PCIMappings(ctx context.Context) ([]PCIMapping, error) {
	rows, err := c.mappings(ctx, "pci")
	if err != nil {
		return nil, fmt.Errorf("reading the PCI mappings: %w", err)
	}
	mappings := make([]PCIMapping, 0, len(rows))
	for _, row := range rows {
		mapping := PCIMapping{ID: row.ID, Mediated: row.MDev.isSet()}
		for _, entry := range row.Map {
			p := ParseProperties(entry)
			mapping.Devices = append(mapping.Devices, PCIDevice{Host: p.Value("node"), Path: p.Value("path")})
		}
		mappings = append(mappings, mapping)
	}
	return mappings, nil
}

// DirectoryMapping is a resource mapping: one name for a directory of several Hosts.
type DirectoryMapping struct {
	ID string
	// Paths by Host.
	Paths map[string]string
}

func (c clusterClient) DirectoryMappings(ctx context.Context) ([]DirectoryMapping, error) {
	rows, err := c.mappings(ctx, "dir")
	if err != nil {
		return nil, fmt.Errorf("reading the directory mappings: %w", err)
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

// USBMapping is a resource mapping: one name for a USB device of several Hosts.
type USBMapping struct {
	ID    string
	Hosts []string
}

func (c clusterClient) USBMappings(ctx context.Context) ([]USBMapping, error) {
	rows, err := c.mappings(ctx, "usb")
	if err != nil {
		return nil, fmt.Errorf("reading the USB mappings: %w", err)
	}
	mappings := make([]USBMapping, 0, len(rows))
	for _, row := range rows {
		mapping := USBMapping{ID: row.ID}
		for _, entry := range row.Map {
			mapping.Hosts = append(mapping.Hosts, ParseProperties(entry).Value("node"))
		}
		mappings = append(mappings, mapping)
	}
	return mappings, nil
}

// mappingRow is a row of any kind of mapping.
type mappingRow struct {
	ID   string   `json:"id"`
	MDev numeric  `json:"mdev"`
	Map  []string `json:"map"`
}

func (c clusterClient) mappings(ctx context.Context, kind string) (rows []mappingRow, err error) {
	return rows, c.get(ctx, at("/cluster/mapping/"+kind), &rows)
}
