// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"net/netip"
	"time"
)

// Client is what we ask of one Cluster. Every method is one API call unless its
// comment says otherwise, and every error it returns is one of the typed errors
// of this package (see errors.go), so that callers never look at texts.
//
// Methods that start a task return as soon as Proxmox accepted it: acceptance
// proves nothing, the task's end does.
type Client interface {
	// Region is the name that the cloud config gives this Cluster.
	Region() string
	// User is whom Proxmox takes us for: user@realm!token, or user@realm. It makes
	// no call; empty where a file that holds it cannot be read now.
	User() string

	// Version asks which Proxmox VE release answers.
	Version(ctx context.Context) (Version, error)
	// Resources reads Hosts, guests and storages of the whole Cluster. Rows of
	// brand-new guests lack name, size and template flag for about ten seconds.
	Resources(ctx context.Context) (Resources, error)
	// Options reads the datacenter options that concern us.
	Options(ctx context.Context) (ClusterOptions, error)
	// Maintenance lists the Hosts that the HA manager drains. It takes Sys.Audit
	// on /; from 9.2 on, Resources tells the same.
	Maintenance(ctx context.Context) ([]string, error)
	// PCIMappings lists the PCI resource mappings that the caller may see.
	PCIMappings(ctx context.Context) ([]PCIMapping, error)
	// DirectoryMappings lists the directory mappings that the caller may see.
	DirectoryMappings(ctx context.Context) ([]DirectoryMapping, error)
	// Permissions reads the caller's privileges by path.
	Permissions(ctx context.Context) (Permissions, error)
	// SecurityGroups lists the names of the Cluster's firewall groups.
	SecurityGroups(ctx context.Context) ([]string, error)
	// Bridges lists the bridges and vnets of a Host that the caller may use.
	Bridges(ctx context.Context, host string) ([]Bridge, error)
	// VNets lists the virtual networks of the SDN that the caller may see.
	VNets(ctx context.Context) ([]VNet, error)
	// PoolExists tells whether there is a resource pool of that name, also to a
	// caller who may not see it.
	PoolExists(ctx context.Context, pool string) (bool, error)

	// HostInfo reads a Host's hardware.
	HostInfo(ctx context.Context, host string) (HostInfo, error)
	// SDNAddresses lists the addresses that Proxmox's own IPAM gave.
	SDNAddresses(ctx context.Context) ([]SDNAddress, error)

	// VMConfig reads the configuration in force (current=1) on that Host.
	// ErrNotFound is proof that no such guest is on that Host. Two calls where
	// the caller may not see the VMID.
	VMConfig(ctx context.Context, host string, vmid int) (VMConfig, error)
	// ContainerConfig reads a container's configuration, in the form of a VM's.
	ContainerConfig(ctx context.Context, host string, vmid int) (VMConfig, error)
	// GuestAddresses asks a VM's guest agent. Where none answers, that blocks a
	// worker of the Host for three seconds.
	GuestAddresses(ctx context.Context, host string, vmid int) ([]netip.Addr, error)
	// VMStatus reads the live power state.
	VMStatus(ctx context.Context, host string, vmid int) (VMStatus, error)

	// CloneVM starts the clone of a template.
	CloneVM(ctx context.Context, req CloneRequest) (UPID, error)
	// UpdateVM writes configuration synchronously: all of it or nothing.
	UpdateVM(ctx context.Context, host string, vmid int, change ConfigChange) error
	// ResizeDisk grows a disk to an absolute size.
	ResizeDisk(ctx context.Context, host string, vmid int, disk string, bytes int64) (UPID, error)
	StartVM(ctx context.Context, host string, vmid int) (UPID, error)
	// StopVM cuts the power; it also breaks off a shutdown under way.
	StopVM(ctx context.Context, host string, vmid int) (UPID, error)
	// ShutdownVM asks the guest to power off, and cuts the power when it has not
	// done so in time. The task lasts as long as the guest takes.
	ShutdownVM(ctx context.Context, host string, vmid int, timeout time.Duration) (UPID, error)
	// RebootVM asks the guest to restart; ResetVM presses the reset button.
	RebootVM(ctx context.Context, host string, vmid int) (UPID, error)
	ResetVM(ctx context.Context, host string, vmid int) (UPID, error)
	// DestroyVM removes a stopped VM with the volumes that it references, and
	// purges it from HA, replication and backup jobs. Unreferenced volumes stay:
	// other owners' volumes can carry our VMID.
	DestroyVM(ctx context.Context, host string, vmid int) (UPID, error)

	// CreateVM starts the creation of a VM. Unlike a clone it takes the VMID at once.
	CreateVM(ctx context.Context, req CreateRequest) (UPID, error)
	// ConvertToTemplate turns a stopped VM into a template, for good.
	ConvertToTemplate(ctx context.Context, host string, vmid int) (UPID, error)
	// DownloadImage lets a Host fetch a disk image as import content. One that is
	// there is not replaced.
	DownloadImage(ctx context.Context, req DownloadRequest) (UPID, error)

	// SetFirewall turns the VM's firewall on and makes its security-group rules
	// exactly these, by identity and not by position; without rules it takes back
	// what it did. Several calls.
	SetFirewall(ctx context.Context, host string, vmid int, rules []SecurityGroupRule) error

	// MoveToPool makes a VM a member of a pool, out of the one that it is in; an
	// empty pool takes it out of from.
	MoveToPool(ctx context.Context, vmid int, from, pool string) error

	// UploadISO stores an image as iso content, replacing one of that name.
	UploadISO(ctx context.Context, host, storage, name string, image []byte) (UPID, error)
	// Volumes lists a storage's volumes of one content type ("iso", "images"...).
	Volumes(ctx context.Context, host, storage, content string) ([]Volume, error)
	// VolumePath is where a volume is on its Host: a file, for ISO images.
	VolumePath(ctx context.Context, host, volid string) (string, error)
	// DeleteVolume removes a volume; one that does not exist is no error.
	// The UPID is empty when Proxmox was done at once.
	DeleteVolume(ctx context.Context, host, volid string) (UPID, error)

	// Task reads the state of a task that this client started.
	Task(ctx context.Context, task UPID) (TaskStatus, error)
	// TaskLog reads a task's log: the place where Proxmox tells why a start failed.
	TaskLog(ctx context.Context, task UPID) ([]string, error)
	// CancelTask ends a running task; whether it rolled back must be looked at.
	CancelTask(ctx context.Context, task UPID) error
	// RunningTasks lists the tasks under way on a Host of one type ("qmclone").
	RunningTasks(ctx context.Context, host, kind string) ([]TaskStatus, error)
}
