// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// Scenario describes the initial state of a cluster. It can be written in Go, YAML or JSON.
type Scenario struct {
	// Version is "8.4" or "9.2".
	Version string `yaml:"version"`
	// Cluster is the name of the cluster; empty for a standalone host.
	Cluster string `yaml:"cluster"`
	// Speed is the default of Options.Speed.
	Speed float64 `yaml:"speed,omitempty"`
	// Latency names a latency profile per storage type: nvme-lvmthin, zfs, ceph, hdd-dir or ssd-dir.
	Latency map[string]string `yaml:"latency,omitempty"`
	// Options are lines of datacenter.cfg, for example "next-id: lower=500,upper=600".
	Options map[string]string `yaml:"options,omitempty"`

	Hosts          []Host          `yaml:"hosts"`
	Storages       []Storage       `yaml:"storages"`
	Roles          []Role          `yaml:"roles,omitempty"`
	Users          []User          `yaml:"users,omitempty"`
	ACLs           []ACL           `yaml:"acls,omitempty"`
	Pools          []Pool          `yaml:"pools,omitempty"`
	SecurityGroups []SecurityGroup `yaml:"securityGroups,omitempty"`
	Zones          []Zone          `yaml:"zones,omitempty"`
	VNets          []VNet          `yaml:"vnets,omitempty"`
	Mappings       []Mapping       `yaml:"mappings,omitempty"`
	Files          []File          `yaml:"files,omitempty"`
	Guests         []Guest         `yaml:"guests,omitempty"`

	// Votes make the votes of the hosts that are up decide about quorum. Without them, hosts that are down count as
	// present, and only SetQuorum and Partition change quorum.
	Votes *Votes `yaml:"votes,omitempty"`
	// BackupJobs and ReplicationJobs are listed and never run.
	BackupJobs      []BackupJob      `yaml:"backupJobs,omitempty"`
	ReplicationJobs []ReplicationJob `yaml:"replicationJobs,omitempty"`
}

// Votes is how hosts vote for quorum.
type Votes struct {
	// QDevice adds an external vote daemon. It has one vote in clusters with an even number of hosts, otherwise one less
	// than there are hosts.
	QDevice bool `yaml:"qdevice,omitempty"`
}

// BackupJob is a scheduled backup.
type BackupJob struct {
	ID       string `yaml:"id"`
	Schedule string `yaml:"schedule"`
	// NextRun is when the job is due, after the start of the simulator.
	NextRun Duration `yaml:"nextRun,omitempty"`
	Host    string   `yaml:"host,omitempty"` // empty: each host backs up its own guests
	// Pool is the resource pool whose guests to back up.
	Pool string `yaml:"pool,omitempty"`
	// VMs are the guests to back up; empty means those of the pool, or all without those of Exclude.
	VMs      []int `yaml:"vms,omitempty"`
	Exclude  []int `yaml:"exclude,omitempty"`
	Disabled bool  `yaml:"disabled,omitempty"`
}

// ReplicationJob replicates the disks of a guest to another host.
type ReplicationJob struct {
	VMID     int    `yaml:"vmid"`
	Target   string `yaml:"target"`
	Disabled bool   `yaml:"disabled,omitempty"`
}

// Host is one Proxmox node.
type Host struct {
	Name    string   `yaml:"name"`
	Sockets int      `yaml:"sockets"`
	Cores   int      `yaml:"cores"` // per socket
	Threads int      `yaml:"threads,omitempty"`
	NUMA    int      `yaml:"numa,omitempty"` // number of NUMA nodes, 1 by default
	Memory  Size     `yaml:"memory"`
	IP      string   `yaml:"ip,omitempty"`
	Bridges []Bridge `yaml:"bridges,omitempty"`
	// PCI devices as /nodes/{node}/hardware/pci lists them.
	PCI []map[string]any `yaml:"pci,omitempty"`
	// Offline hosts are powered off initially; Unreachable is how connections to them fail: refused, noroute (the
	// default) or timeout.
	Offline     bool `yaml:"offline,omitempty"`
	Maintenance bool `yaml:"maintenance,omitempty"`
	// Arch is x86_64 (the default) or aarch64.
	Arch        string `yaml:"arch,omitempty"`
	Unreachable string `yaml:"unreachable,omitempty"`
	// DownloadRate is the download rate in bytes per second; if zero, downloads complete immediately.
	DownloadRate Size `yaml:"downloadRate,omitempty"`
	// Config is the node config, for example "wakeonlan".
	Config map[string]string `yaml:"config,omitempty"`
	// Votes is the number of votes for quorum, 1 by default.
	Votes int `yaml:"votes,omitempty"`
	// Ceph are the Ceph daemons on the host, for example "mon", "mgr", "osd.0". Hosts without any have no Ceph installed.
	Ceph []string `yaml:"ceph,omitempty"`
	// ShutdownTime is how long a shutdown over the API takes after the guests are stopped, 20 seconds by default; BootTime
	// is how long the host takes to boot, 90 seconds by default.
	ShutdownTime Duration `yaml:"shutdownTime,omitempty"`
	BootTime     Duration `yaml:"bootTime,omitempty"`
	// TaskListDelay is how long the list of tasks shows a task as running after its end, as on a busy host. The status of
	// a task has no delay.
	TaskListDelay Duration `yaml:"taskListDelay,omitempty"`
}

// Defaults of hosts.
const (
	DefaultShutdownTime = 20 * time.Second
	DefaultBootTime     = 90 * time.Second
)

// Bridge is a network bridge of a host.
type Bridge struct {
	Name      string `yaml:"name"`
	CIDR      string `yaml:"cidr,omitempty"`
	Gateway   string `yaml:"gateway,omitempty"`
	Ports     string `yaml:"ports,omitempty"`
	VLANAware bool   `yaml:"vlanAware,omitempty"`
}

// Storage is a storage definition.
type Storage struct {
	ID      string   `yaml:"id"`
	Type    string   `yaml:"type"` // dir, lvmthin, lvm, zfspool, rbd, nfs or cifs
	Content []string `yaml:"content"`
	Shared  bool     `yaml:"shared,omitempty"`
	Hosts   []string `yaml:"hosts,omitempty"` // empty: all
	Size    Size     `yaml:"size"`
	Used    Size     `yaml:"used,omitempty"` // by data that is not in the scenario
	Path    string   `yaml:"path,omitempty"`
	Server  string   `yaml:"server,omitempty"` // of nfs and cifs
}

// Role is a set of privileges.
type Role struct {
	ID         string   `yaml:"id"`
	Privileges []string `yaml:"privileges"`
}

// User is a login with its API tokens.
type User struct {
	ID       string   `yaml:"id"`
	Password string   `yaml:"password,omitempty"`
	Comment  string   `yaml:"comment,omitempty"`
	Email    string   `yaml:"email,omitempty"`
	Groups   []string `yaml:"groups,omitempty"`
	Disabled bool     `yaml:"disabled,omitempty"`
	Tokens   []Token  `yaml:"tokens,omitempty"`
}

// Token is an API token.
type Token struct {
	ID      string `yaml:"id"`
	Secret  string `yaml:"secret"`
	Privsep bool   `yaml:"privsep,omitempty"`
	Expire  int64  `yaml:"expire,omitempty"`
}

// ACL grants a role on a path to exactly one of user, group or token ("user@realm!name").
type ACL struct {
	Path        string `yaml:"path"`
	Role        string `yaml:"role"`
	User        string `yaml:"user,omitempty"`
	Group       string `yaml:"group,omitempty"`
	Token       string `yaml:"token,omitempty"`
	NoPropagate bool   `yaml:"noPropagate,omitempty"`
}

// Pool groups guests and storages.
type Pool struct {
	ID       string   `yaml:"id"`
	Comment  string   `yaml:"comment,omitempty"`
	VMs      []int    `yaml:"vms,omitempty"`
	Storages []string `yaml:"storages,omitempty"`
}

// SecurityGroup is a firewall group of the cluster.
type SecurityGroup struct {
	Name    string `yaml:"name"`
	Comment string `yaml:"comment,omitempty"`
}

// Zone is an SDN zone.
type Zone struct {
	Zone string `yaml:"zone"`
	Type string `yaml:"type"`
	// With IPAM "pve" and DHCP "dnsmasq", Proxmox assigns addresses to guests on the zone's virtual networks.
	IPAM string `yaml:"ipam,omitempty"`
	DHCP string `yaml:"dhcp,omitempty"`
}

// VNet is a virtual network of a zone; VMs use it like a bridge.
type VNet struct {
	VNet string `yaml:"vnet"`
	Zone string `yaml:"zone"`
	Tag  int    `yaml:"tag,omitempty"`
	// Subnet and Gateway define the addresses that a zone with IPAM assigns: "10.9.0.0/24", "10.9.0.1".
	Subnet  string `yaml:"subnet,omitempty"`
	Gateway string `yaml:"gateway,omitempty"`
}

// Mapping is a resource mapping.
type Mapping struct {
	Kind string   `yaml:"kind"` // pci, usb or dir
	ID   string   `yaml:"id"`
	Map  []string `yaml:"map"`
}

// File is a volume that is not a disk: an ISO, an image to import, a snippet. Either Text or Size gives its content.
type File struct {
	Storage string `yaml:"storage"`
	Host    string `yaml:"host,omitempty"` // not for shared storages
	Name    string `yaml:"name"`           // for example "iso/debian.iso"
	Text    string `yaml:"text,omitempty"`
	Size    Size   `yaml:"size,omitempty"`
}

// Guest is a VM, template or container that exists initially.
type Guest struct {
	VMID   int    `yaml:"vmid"`
	Name   string `yaml:"name,omitempty"`
	Host   string `yaml:"host"`
	Type   string `yaml:"type,omitempty"`   // qemu (the default) or lxc
	Status string `yaml:"status,omitempty"` // running or stopped (the default)
	// Uptime is how long a running guest has been running when the simulator starts.
	Uptime Duration `yaml:"uptime,omitempty"`
	Pool   string   `yaml:"pool,omitempty"`
	// Config contains options in the format of the config file: "scsi0: local-lvm:vm-100-disk-0,size=32G".
	Config map[string]string `yaml:"config,omitempty"`
}

// Size is a number of bytes. In files it may have a unit: "64GiB", "64G", "512MiB".
type Size int64

// Units for scenarios in Go.
const (
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
)

var sizePattern = regexp.MustCompile(`^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?$`)

// UnmarshalYAML parses a size with or without a unit.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	m := sizePattern.FindStringSubmatch(n.Value)
	if m == nil {
		return fmt.Errorf("line %d: %q is not a size: write bytes or a number with a unit, for example 64GiB", n.Line, n.Value)
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return fmt.Errorf("line %d: parsing size %q: %w", n.Line, n.Value, err)
	}
	unit := map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[m[2]]
	*s = Size(math.Round(f * unit))
	return nil
}

// ReadScenario reads a scenario file. Unknown fields and bad values are errors that name line and field.
func ReadScenario(r io.Reader) (*Scenario, error) {
	raw, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading scenario: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	var s Scenario
	if err := dec.Decode(&s); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("reading scenario: the file is empty")
		}
		return nil, fmt.Errorf("reading scenario: %w", err)
	}
	if err := s.validate(); err != nil {
		if f, ok := errors.AsType[*fieldError](err); ok {
			if line := lineOf(raw, f.path); line > 0 {
				return nil, fmt.Errorf("reading scenario: line %d: %w", line, err)
			}
		}
		return nil, fmt.Errorf("reading scenario: %w", err)
	}
	return &s, nil
}

// LoadScenario reads a scenario from a file.
func LoadScenario(file string) (*Scenario, error) {
	f, err := os.Open(file) //nolint:gosec // the path is set by the user
	if err != nil {
		return nil, fmt.Errorf("opening scenario: %w", err)
	}
	defer func() { _ = f.Close() }()
	s, err := ReadScenario(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}
