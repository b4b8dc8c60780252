// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ClusterClient reads the state of a Cluster and its Hosts.
type ClusterClient interface {
	// Version returns the Proxmox VE release of the Host that responds.
	Version(ctx context.Context) (Version, error)
	// Resources returns the Hosts, guests and storages of the whole Cluster. Rows of
	// new guests lack name, size and template flag for about ten seconds. If a Host is
	// no longer online, Resources makes a second call to find out whether the Host that
	// responded has quorum. It returns ErrNoQuorum if none of the URLs has.
	Resources(ctx context.Context) (Resources, error)
	// Options returns the datacenter options that the provider uses.
	Options(ctx context.Context) (ClusterOptions, error)
	// Maintenance returns the Hosts that the HA manager drains. It requires Sys.Audit
	// on /. From 9.2 on, Resources contains the same information.
	Maintenance(ctx context.Context) ([]string, error)
	// PCIMappings returns the PCI resource mappings visible to the user.
	PCIMappings(ctx context.Context) ([]PCIMapping, error)
	// DirectoryMappings returns the directory mappings visible to the user. There are
	// none before Proxmox VE 8.4.
	DirectoryMappings(ctx context.Context) ([]DirectoryMapping, error)
	// USBMappings returns the USB mappings visible to the user.
	USBMappings(ctx context.Context) ([]USBMapping, error)
	// Permissions returns the user's privileges by path. Proxmox omits paths on which an
	// ACL cancels what they inherit, except near the root.
	Permissions(ctx context.Context) (Permissions, error)
	// HasAccess reports whether the user has any privilege on a path.
	HasAccess(ctx context.Context, path string) (bool, error)
	// Roles returns the privileges of all roles by name. Every user may read them.
	Roles(ctx context.Context) (map[string][]string, error)
	// PoolExists reports whether there is a resource pool of that name, also if the
	// user may not audit it.
	PoolExists(ctx context.Context, pool string) (bool, error)
	// HostInfo returns a Host's hardware. It requires Sys.Audit on the Host.
	HostInfo(ctx context.Context, host string) (HostInfo, error)
	// HostNotes returns the notes of a Host. It requires Sys.Audit on /.
	HostNotes(ctx context.Context, host string) (string, error)
}

type clusterClient struct {
	*caller
	quorum *quorum
}

// Version is a Proxmox VE release.
type Version struct {
	Release string // "8.4", "9.2"
	Full    string // "9.2.11"
}

// AtLeast reports whether the release is this one or a later one. It returns false
// if the release is unknown.
func (v Version) AtLeast(major, minor int) bool {
	var found [2]int
	if n, err := fmt.Sscanf(v.Release, "%d.%d", &found[0], &found[1]); err != nil || n != 2 {
		return false
	}
	return found[0] > major || (found[0] == major && found[1] >= minor)
}

func (c clusterClient) Version(ctx context.Context) (Version, error) {
	var out struct{ Release, Version string }
	if err := c.get(ctx, at("/version"), &out); err != nil {
		return Version{}, fmt.Errorf("reading the version: %w", err)
	}
	return Version{Release: out.Release, Full: out.Version}, nil
}

// ClusterOptions are the datacenter options that the provider uses.
type ClusterOptions struct {
	// MACPrefix is the prefix for new NICs, "BC:24:11" if the Cluster sets none.
	MACPrefix string
	// TagAccess controls who may set which tags: free, existing, list or none. It is
	// empty without Sys.Audit on /.
	TagAccess string
	// AllowedTags is nil if any tag may be set.
	AllowedTags []string
	// RegisteredTags require Sys.Modify on / to be set or removed.
	RegisteredTags []string
}

// defaultMACPrefix is Proxmox's own prefix.
const defaultMACPrefix = "BC:24:11"

func (c clusterClient) Options(ctx context.Context) (ClusterOptions, error) {
	var out struct {
		MACPrefix  string          `json:"mac_prefix"`
		Allowed    []string        `json:"allowed-tags"`
		Registered json.RawMessage `json:"registered-tags"`
		Access     json.RawMessage `json:"user-tag-access"`
	}
	if err := c.get(ctx, at("/cluster/options"), &out); err != nil {
		return ClusterOptions{}, fmt.Errorf("reading the datacenter options: %w", err)
	}
	options := ClusterOptions{MACPrefix: out.MACPrefix, RegisteredTags: parseTagList(out.Registered)}
	if options.MACPrefix == "" {
		options.MACPrefix = defaultMACPrefix
	}
	options.TagAccess = parseTagAccess(out.Access)
	if options.TagAccess != "" && options.TagAccess != "free" {
		options.AllowedTags = append([]string{}, out.Allowed...)
	}
	return options, nil
}

// parseTagAccess parses user-tag-access, an object or a property string. Proxmox
// omits it without Sys.Audit on /. Then any tag counts as allowed, and setting a
// forbidden one fails with a *ForbiddenError that names it.
func parseTagAccess(raw json.RawMessage) string {
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

func parseTagList(raw json.RawMessage) []string {
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

func (c clusterClient) Maintenance(ctx context.Context) ([]string, error) {
	var out struct {
		Manager struct {
			Hosts map[string]string `json:"node_status"`
		} `json:"manager_status"`
	}
	if err := c.get(ctx, at("/cluster/ha/status/manager_status"), &out); err != nil {
		return nil, fmt.Errorf("reading the HA manager's status: %w", err)
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

func (c clusterClient) Permissions(ctx context.Context) (Permissions, error) {
	var out map[string]map[string]numeric
	if err := c.get(ctx, at("/access/permissions"), &out); err != nil {
		return nil, fmt.Errorf("reading the user's permissions: %w", err)
	}
	permissions := make(Permissions, len(out))
	for path, privileges := range out {
		permissions[path] = make(map[string]bool, len(privileges))
		for privilege, propagates := range privileges {
			permissions[path][privilege] = propagates.isSet()
		}
	}
	permissions.denyUnlisted()
	return permissions, nil
}

func (c clusterClient) HasAccess(ctx context.Context, path string) (bool, error) {
	var out map[string]map[string]numeric
	if err := c.get(ctx, at("/access/permissions").with("path", path), &out); err != nil {
		return false, fmt.Errorf("reading the user's permissions on %s: %w", path, err)
	}
	return len(out[path]) > 0, nil
}

func (c clusterClient) Roles(ctx context.Context) (map[string][]string, error) {
	var rows []struct{ RoleID, Privs string }
	if err := c.get(ctx, at("/access/roles"), &rows); err != nil {
		return nil, fmt.Errorf("reading the roles: %w", err)
	}
	roles := make(map[string][]string, len(rows))
	for _, row := range rows {
		roles[row.RoleID] = strings.FieldsFunc(row.Privs, func(r rune) bool { return r == ',' })
	}
	return roles, nil
}

// PoolExists reads the pool by name: lists of pools omit those that the user may
// not audit.
func (c clusterClient) PoolExists(ctx context.Context, pool string) (bool, error) {
	var rows []struct{ PoolID string }
	err := c.get(ctx, at("/pools").with("poolid", pool), &rows)
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading pool %q: %w", pool, err)
	}
	return true, nil
}

// HostInfo is a Host's hardware. Proxmox does not expose which CPU belongs to which
// core or NUMA cell.
type HostInfo struct {
	Sockets int
	// Cores of all sockets together.
	Cores int
	// CPUs are threads, as many as in HostRow.
	CPUs int
}

func (c clusterClient) HostInfo(ctx context.Context, host string) (HostInfo, error) {
	var out struct {
		CPUInfo struct {
			Sockets numeric `json:"sockets"`
			Cores   numeric `json:"cores"`
			CPUs    numeric `json:"cpus"`
		} `json:"cpuinfo"`
	}
	if err := c.get(ctx, at("/nodes/{node}/status", host), &out); err != nil {
		return HostInfo{}, fmt.Errorf("reading the hardware of host %s: %w", host, err)
	}
	return HostInfo{Sockets: int(out.CPUInfo.Sockets.whole()), Cores: int(out.CPUInfo.Cores.whole()), CPUs: int(out.CPUInfo.CPUs.whole())}, nil
}

func (c clusterClient) HostNotes(ctx context.Context, host string) (string, error) {
	var out struct{ Description string }
	if err := c.get(ctx, at("/nodes/{node}/config", host), &out); err != nil {
		return "", fmt.Errorf("reading the notes of host %s: %w", host, err)
	}
	return out.Description, nil
}
