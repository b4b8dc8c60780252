// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
)

// Resources are the rows of /cluster/resources.
type Resources struct {
	Hosts    []HostRow
	Guests   []GuestRow
	Storages []StorageRow
}

// HostRow is a Host in the Cluster's resources. Numbers are zero without Sys.Audit
// on the Host.
type HostRow struct {
	Name        string
	Online      bool
	CPUs        int // threads
	MemoryBytes int64
	// UsedMemoryBytes includes the memory of guests.
	UsedMemoryBytes int64
	CPULoad         float64 // 0..1
	UptimeSeconds   int64
	// Maintenance is true if the HA manager drains the Host. It is set by 9.2 and
	// later only; see ClusterClient.Maintenance.
	Maintenance bool
	// Arch is "x86_64" or "aarch64".
	Arch string
}

// Guest kinds.
const (
	KindQEMU = "qemu"
	KindLXC  = "lxc"
)

// GuestRow is a VM, template or container in the Cluster's resources.
type GuestRow struct {
	VMID        int
	Kind        string // KindQEMU or KindLXC
	Name        string
	Host        string
	Status      string // running, stopped, unknown, paused...
	Template    bool
	Tags        []string
	Pool        string
	Lock        string
	HAState     string
	CPUs        int
	MemoryBytes int64
	DiskBytes   int64
	// UptimeSeconds of a running guest.
	UptimeSeconds int64
}

// HasResources reports whether the row has the guest's CPUs, memory and disk. They
// are missing for about ten seconds after a guest was created, and while its Host
// is offline.
func (r GuestRow) HasResources() bool { return r.MemoryBytes > 0 }

// StorageRow is one storage on one Host.
type StorageRow struct {
	Name       string
	Host       string
	Type       string // lvmthin, dir, zfspool, rbd...
	Content    []string
	Shared     bool
	Available  bool
	UsedBytes  int64
	TotalBytes int64
}

// fileStorages are the types of storages whose volumes are files.
var fileStorages = []string{"dir", "nfs", "cifs", "cephfs", "btrfs", "glusterfs"}

// HasFiles reports whether the volumes of the storage are files. Only such a storage can have
// ISO images and images to import; the others have only disks.
func (s StorageRow) HasFiles() bool { return slices.Contains(fileStorages, s.Type) }

func (c clusterClient) Resources(ctx context.Context) (Resources, error) {
	var (
		all       Resources
		decodeErr error
	)
	req := newRequest(http.MethodGet, at("/cluster/resources"), nil)
	req.verify = func(resp response, get func(endpoint) (response, error)) error {
		if data, err := resp.data(); err == nil { // otherwise call returns it
			var rows []resourceRow
			if decodeErr = decode(req.method, data, &rows); decodeErr == nil {
				all = newResources(rows)
				return c.quorum.verify(all.Hosts, c.observed(get))
			}
		}
		return nil
	}
	err := c.call(ctx, req, nil)
	if err == nil {
		err = decodeErr
	}
	if err != nil {
		return Resources{}, fmt.Errorf("reading the cluster's resources: %w", err)
	}
	return all, nil
}

func newResources(rows []resourceRow) Resources {
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
	return all
}

// resourceRow is a row of any type.
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

const (
	// maintenance is the state of a Host that the HA manager drains.
	maintenance = "maintenance"
	// defaultArch applies to rows without an architecture: releases before 9.2
	// support no other, and later ones list only the others.
	defaultArch = "x86_64"
)

func (r resourceRow) host() HostRow {
	return HostRow{
		Name:            r.Node,
		Online:          r.Status == "online",
		CPUs:            int(r.MaxCPU.whole()),
		MemoryBytes:     r.MaxMem.whole(),
		UsedMemoryBytes: r.Mem.whole(),
		CPULoad:         float64(r.CPU),
		UptimeSeconds:   r.Uptime.whole(),
		Maintenance:     r.HAState == maintenance,
		Arch:            cmp.Or(r.HostArch, defaultArch),
	}
}

func (r resourceRow) guest() GuestRow {
	return GuestRow{
		VMID:          int(r.VMID.whole()),
		Kind:          r.Type,
		Name:          r.Name,
		Host:          r.Node,
		Status:        r.Status,
		Template:      r.Template.isSet(),
		Tags:          splitTags(r.Tags),
		Pool:          r.Pool,
		Lock:          r.Lock,
		HAState:       r.HAState,
		CPUs:          int(numeric(math.Ceil(float64(r.MaxCPU))).whole()), // a container may have half a CPU
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
