// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Version asks which Proxmox VE release answers.
func (c *client) Version(ctx context.Context) (Version, error) {
	var out struct{ Release, Version string }
	if err := c.get(ctx, at("/version"), &out); err != nil {
		return Version{}, fmt.Errorf("reading the version, %w", err)
	}
	return Version{Release: out.Release, Full: out.Version}, nil
}

// numeric reads numbers that come as text in some releases and figures that
// come with decimals.
type numeric float64

func (n *numeric) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	switch text {
	case "null", "", "false":
		*n = 0
		return nil
	case "true":
		*n = 1
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("found %s, want a number", data)
	}
	*n = numeric(value)
	return nil
}

func (n numeric) whole() int64 { return int64(n) }
func (n numeric) isSet() bool  { return n != 0 }

// resourceRow is a row of /cluster/resources, of any type.
type resourceRow struct {
	Type       string  `json:"type"`
	Node       string  `json:"node"`
	Status     string  `json:"status"`
	VMID       numeric `json:"vmid"`
	Name       string  `json:"name"`
	Template   numeric `json:"template"`
	Tags       string  `json:"tags"`
	Pool       string  `json:"pool"`
	Lock       string  `json:"lock"`
	HAState    string  `json:"hastate"`
	MaxCPU     numeric `json:"maxcpu"`
	CPU        numeric `json:"cpu"`
	MaxMem     numeric `json:"maxmem"`
	Mem        numeric `json:"mem"`
	MaxDisk    numeric `json:"maxdisk"`
	Disk       numeric `json:"disk"`
	Uptime     numeric `json:"uptime"`
	Storage    string  `json:"storage"`
	PluginType string  `json:"plugintype"`
	Content    string  `json:"content"`
	Shared     numeric `json:"shared"`
	HostArch   string  `json:"host-arch"`
}

// Resources reads Hosts, guests and storages of the whole Cluster.
func (c *client) Resources(ctx context.Context) (Resources, error) {
	var rows []resourceRow
	if err := c.get(ctx, at("/cluster/resources"), &rows); err != nil {
		return Resources{}, fmt.Errorf("reading the cluster's resources, %w", err)
	}
	var all Resources
	for _, row := range rows {
		switch row.Type {
		case "node":
			all.Hosts = append(all.Hosts, row.host())
		case KindQEMU, KindLXC:
			all.Guests = append(all.Guests, row.guest())
		case "storage":
			all.Storages = append(all.Storages, row.storage())
		}
	}
	return all, nil
}

func (r resourceRow) host() HostRow {
	return HostRow{
		Name:            r.Node,
		Online:          r.Status == "online",
		CPUs:            int(r.MaxCPU),
		MemoryBytes:     r.MaxMem.whole(),
		UsedMemoryBytes: r.Mem.whole(),
		CPULoad:         float64(r.CPU),
		UptimeSeconds:   r.Uptime.whole(),
		Maintenance:     r.HAState == maintenance,
		Arch:            cmp.Or(r.HostArch, defaultArch),
	}
}

const (
	// maintenance is the state of a Host that the HA manager drains.
	maintenance = "maintenance"
	// defaultArch is what a Host is that says nothing: releases before 9.2 know no
	// other, and later ones name only the others.
	defaultArch = "x86_64"
)

// Maintenance lists the Hosts that the HA manager drains.
func (c *client) Maintenance(ctx context.Context) ([]string, error) {
	var out struct {
		Manager struct {
			Hosts map[string]string `json:"node_status"`
		} `json:"manager_status"`
	}
	if err := c.get(ctx, at("/cluster/ha/status/manager_status"), &out); err != nil {
		return nil, fmt.Errorf("reading the HA manager's status, %w", err)
	}
	var hosts []string
	for host, state := range out.Manager.Hosts {
		if state == maintenance {
			hosts = append(hosts, host)
		}
	}
	slices.Sort(hosts)
	return hosts, nil
}

func (r resourceRow) guest() GuestRow {
	return GuestRow{
		VMID:          int(r.VMID),
		Kind:          r.Type,
		Name:          r.Name,
		Host:          r.Node,
		Status:        r.Status,
		Template:      r.Template.isSet(),
		Tags:          splitTags(r.Tags),
		Pool:          r.Pool,
		Lock:          r.Lock,
		HAState:       r.HAState,
		CPUs:          int(math.Ceil(float64(r.MaxCPU))), // a container may have half a CPU
		MemoryBytes:   r.MaxMem.whole(),
		DiskBytes:     r.MaxDisk.whole(),
		UptimeSeconds: r.Uptime.whole(),
	}
}

func (r resourceRow) storage() StorageRow {
	return StorageRow{
		Name:       r.Storage,
		Host:       r.Node,
		Type:       r.PluginType,
		Content:    splitTags(r.Content),
		Shared:     r.Shared.isSet(),
		Available:  r.Status == "available",
		UsedBytes:  r.Disk.whole(),
		TotalBytes: r.MaxDisk.whole(),
	}
}

// defaultMACPrefix is Proxmox's own, for a Cluster that names none.
const defaultMACPrefix = "BC:24:11"

// Options reads the datacenter options that concern us.
func (c *client) Options(ctx context.Context) (ClusterOptions, error) {
	var out struct {
		MACPrefix  string          `json:"mac_prefix"`
		Allowed    []string        `json:"allowed-tags"`
		Registered json.RawMessage `json:"registered-tags"`
		Access     json.RawMessage `json:"user-tag-access"`
	}
	if err := c.get(ctx, at("/cluster/options"), &out); err != nil {
		return ClusterOptions{}, fmt.Errorf("reading the datacenter options, %w", err)
	}
	options := ClusterOptions{MACPrefix: out.MACPrefix, RegisteredTags: tagList(out.Registered)}
	if options.MACPrefix == "" {
		options.MACPrefix = defaultMACPrefix
	}
	options.TagAccess = tagAccess(out.Access)
	if options.TagAccess != "" && options.TagAccess != "free" {
		options.AllowedTags = append([]string{}, out.Allowed...)
	}
	return options, nil
}

// tagAccess reads user-tag-access: an object, or a property string. Without
// Sys.Audit on / Proxmox does not tell; then any tag counts as allowed, and a
// refused one fails with a *ForbiddenError that names it.
func tagAccess(raw json.RawMessage) string {
	var object struct {
		Allow string `json:"user-allow"`
	}
	if json.Unmarshal(raw, &object) != nil {
		var text string
		if json.Unmarshal(raw, &text) == nil {
			object.Allow = ParseProperties(text).Value("user-allow")
		}
	}
	return object.Allow
}

func tagList(raw json.RawMessage) []string {
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return splitTags(text)
	}
	return nil
}

// Permissions reads the caller's privileges by path.
func (c *client) Permissions(ctx context.Context) (Permissions, error) {
	var out map[string]map[string]numeric
	if err := c.get(ctx, at("/access/permissions"), &out); err != nil {
		return nil, fmt.Errorf("reading our own permissions, %w", err)
	}
	permissions := make(Permissions, len(out))
	for path, privileges := range out {
		permissions[path] = make(map[string]bool, len(privileges))
		for privilege, propagates := range privileges {
			permissions[path][privilege] = propagates.isSet()
		}
	}
	return permissions, nil
}

// SecurityGroups lists the names of the Cluster's firewall groups.
func (c *client) SecurityGroups(ctx context.Context) ([]string, error) {
	var rows []struct{ Group string }
	if err := c.get(ctx, at("/cluster/firewall/groups"), &rows); err != nil {
		return nil, fmt.Errorf("reading the security groups, %w", err)
	}
	names := make([]string, 0, len(rows))
	for _, row := range rows {
		names = append(names, row.Group)
	}
	return names, nil
}

// Bridges lists the bridges and vnets of a Host that the caller may use.
func (c *client) Bridges(ctx context.Context, host string) ([]Bridge, error) {
	var rows []struct {
		Iface     string
		Type      string
		Ports     string  `json:"bridge_ports"`
		OVSPorts  string  `json:"ovs_ports"`
		VLANAware numeric `json:"bridge_vlan_aware"`
		CIDR      string
		CIDR6     string
		Gateway   string
		Gateway6  string
	}
	if err := c.get(ctx, at("/nodes/{node}/network", host).with("type", "any_bridge"), &rows); err != nil {
		return nil, fmt.Errorf("reading the bridges of host %s, %w", host, err)
	}
	bridges := make([]Bridge, 0, len(rows))
	for _, row := range rows {
		bridge := Bridge{
			Name: row.Iface, Type: row.Type, VLANAware: row.VLANAware.isSet(), Ports: strings.TrimSpace(row.Ports + " " + row.OVSPorts),
		}
		// What does not parse is absent: a bridge need not have an address.
		bridge.CIDR4, _ = netip.ParsePrefix(row.CIDR)
		bridge.CIDR6, _ = netip.ParsePrefix(row.CIDR6)
		bridge.Gateway4, _ = netip.ParseAddr(row.Gateway)
		bridge.Gateway6, _ = netip.ParseAddr(row.Gateway6)
		bridges = append(bridges, bridge)
	}
	return bridges, nil
}

// VNets lists the virtual networks of the SDN that the caller may see.
func (c *client) VNets(ctx context.Context) ([]VNet, error) {
	var rows []struct {
		VNet      string
		Zone      string
		VLANAware numeric
	}
	if err := c.get(ctx, at("/cluster/sdn/vnets"), &rows); err != nil {
		return nil, fmt.Errorf("reading the vnets, %w", err)
	}
	vnets := make([]VNet, 0, len(rows))
	for _, row := range rows {
		vnets = append(vnets, VNet{Name: row.VNet, Zone: row.Zone, VLANAware: row.VLANAware.isSet()})
	}
	return vnets, nil
}
