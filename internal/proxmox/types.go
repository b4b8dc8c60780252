// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"net/netip"
	"time"
)

// Version is a Proxmox VE release.
type Version struct {
	Release string // "8.4", "9.2"
	Full    string // "9.2.11"
}

// AtLeast tells whether the release is this one or a later one; one that is not
// known is none.
func (v Version) AtLeast(major, minor int) bool {
	var found [2]int
	if n, err := fmt.Sscanf(v.Release, "%d.%d", &found[0], &found[1]); err != nil || n != 2 {
		return false
	}
	return found[0] > major || (found[0] == major && found[1] >= minor)
}

// Resources is one reading of /cluster/resources.
type Resources struct {
	Hosts    []HostRow
	Guests   []GuestRow
	Storages []StorageRow
}

// HostRow is a Host as the Cluster sees it. Figures are zero without the
// privilege Sys.Audit on the Host.
type HostRow struct {
	Name        string
	Online      bool
	CPUs        int // threads
	MemoryBytes int64
	// UsedMemoryBytes is what the Host reports as in use, guests included.
	UsedMemoryBytes int64
	CPULoad         float64 // 0..1
	UptimeSeconds   int64
	// Maintenance is true when the HA manager drains the Host. Only 9.2 and later
	// show it here; see Client.Maintenance.
	Maintenance bool
	// Arch is "x86_64" or "aarch64".
	Arch string
}

// Guest kinds.
const (
	KindQEMU = "qemu"
	KindLXC  = "lxc"
)

// GuestRow is a VM, template or container as the Cluster sees it.
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

// Known tells whether the row carries the guest's figures: they lack for about
// ten seconds after a guest was made, and while its Host is away.
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

// ClusterOptions are the datacenter options that concern us.
type ClusterOptions struct {
	// MACPrefix for new NICs, "BC:24:11" where the Cluster names none.
	MACPrefix string
	// TagAccess is who may set which tags: free, existing, list or none. Empty where
	// Proxmox does not tell, for which it wants Sys.Audit on /.
	TagAccess string
	// AllowedTags is nil where any tag may be set.
	AllowedTags []string
	// RegisteredTags may only be set or removed with Sys.Modify on /.
	RegisteredTags []string
}

// Bridge is what a NIC of a VM can be attached to on a Host.
type Bridge struct {
	Name string
	Type string // bridge, OVSBridge, or vnet for one of the SDN
	// VLANAware bridges carry the tags of NICs themselves. Others need a port, on
	// which Proxmox then makes the VLAN.
	VLANAware bool
	Ports     string
	// CIDR4 and CIDR6 are the Host's own address on it with its prefix, where it has one.
	CIDR4, CIDR6       netip.Prefix
	Gateway4, Gateway6 netip.Addr
}

// VNet is a virtual network of the Cluster's SDN.
type VNet struct {
	Name      string
	Zone      string
	VLANAware bool
}

// CloneRequest asks for a clone of a template.
type CloneRequest struct {
	Host        string // where the template is
	TemplateID  int
	VMID        int
	Name        string
	Description string
	// Full copies the disks; otherwise the clone is linked to the template.
	Full bool
	// Storage for the copied disks, only with Full. Empty = where the template's are.
	Storage string
	// Target Host, where it differs from Host (shared storage only).
	Target string
	Pool   string
}

// CreateRequest asks for a new VM.
type CreateRequest struct {
	Host string
	VMID int
	Pool string
	// Options of the configuration. "storage:0,import-from=volume" makes a disk of an image.
	Options map[string]string
}

// DownloadRequest asks a Host to fetch a disk image.
type DownloadRequest struct {
	Host    string
	Storage string
	// Name of the file, whose extension tells the format: qcow2, raw or vmdk.
	Name         string
	URL          string
	Checksum     string // empty = not verified
	ChecksumType string
}

// ConfigChange is one configuration write: options to set and options to remove.
type ConfigChange struct {
	Set    map[string]string
	Delete []string
	// Digest, where given, refuses the write if the configuration changed since.
	Digest string
}

// VMStatus is a VM's live state.
type VMStatus struct {
	Running       bool
	Status        string // running, stopped
	Lock          string
	UptimeSeconds int64
	HAManaged     bool
	AgentEnabled  bool
}

// SecurityGroupRule binds a firewall group to an interface of a VM.
type SecurityGroupRule struct {
	Group     string
	Interface string // net0
}

// Volume is an entry of a storage's content.
type Volume struct {
	ID        string // storage:iso/name.iso
	Format    string
	SizeBytes int64
	VMID      int
	Created   time.Time
}

// TaskStatus is the state of a task.
type TaskStatus struct {
	UPID    UPID
	Type    string
	ID      string // qmclone: the SOURCE's VMID
	User    string
	Started time.Time
	Running bool
	// Exit is the task's last word: "OK", "WARNINGS: n" or the error.
	Exit string
}

// Ended tells that the task was read, and has ended.
func (s TaskStatus) Ended() bool { return !s.Running && s.Exit != "" }

// Err is nil while the task runs or when it ended well, otherwise an error of
// this package made from its last word.
func (s TaskStatus) Err() error {
	if s.Running || s.Succeeded() {
		return nil
	}
	return taskError(s)
}
