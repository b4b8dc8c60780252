// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kernel is the core of the simulated cluster: hosts, guests, cluster options, quorum, clock, tasks, locks and
// access control, and the dispatch of API calls to the handlers that the other packages register.
//
// Kernel.Mu guards the state of all packages. A handler holds it only while it reads or changes state; everything that
// takes time (locks, copies, boots) runs in tasks and waits without it.
package kernel

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Kernel is the state that all areas of the API share. It dispatches API calls to their handlers.
type Kernel struct {
	Permissions

	Clock   *clock.Clock
	Signer  *access.Signer
	Tasks   *tasks.Registry
	Locks   *locks.Table
	Schema  *schema.Catalog
	Version Version
	Name    string // of the cluster, empty for a standalone host

	// Mu guards the fields below and the state of the packages that register handlers.
	Mu      sync.Mutex
	Hosts   []*Host
	Guests  map[int]*Guest
	Options map[string]string // datacenter.cfg
	// BackupJobs and ReplicationJobs are listed and never run.
	BackupJobs, ReplicationJobs []api.Row
	NoQuorum                    bool
	// Votes make the votes of the hosts that are up decide about quorum. If it is nil, hosts that are down count as
	// present.
	Votes *Votes
	HA    HA

	hostsByName map[string]*Host
	nextPID     int

	ctx    context.Context
	cancel context.CancelFunc
	group  *clock.Group
	routes map[string]api.Handler
}

// New returns a cluster without hosts and handlers. It fails if there is no schema for the version.
func New(version Version, name string, speed float64) (*Kernel, error) {
	catalog, err := schema.Load(version.Release)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, group := clock.New(speed), clock.NewGroup()
	return &Kernel{
		Permissions: Permissions{Access: access.New(schema.Privileges(version.Release))}, Clock: c, Signer: access.NewSigner(),
		Tasks: tasks.NewRegistry(ctx, c, group), Locks: locks.New(c), Schema: catalog, Version: version, Name: name,
		Guests: map[int]*Guest{}, Options: map[string]string{}, BackupJobs: []api.Row{}, hostsByName: map[string]*Host{}, nextPID: 15000,
		ctx: ctx, cancel: cancel, group: group, routes: map[string]api.Handler{},
	}, nil
}

// Handle registers handlers by method, "GET /version". It fails if the schema does not have a method, unless the
// version is known not to have it. It must not be called after the first request.
func (k *Kernel) Handle(routes map[string]api.Handler) error {
	for name, handler := range routes {
		if k.Schema.Method(name) == nil && !k.Version.isMissing(name) {
			return fmt.Errorf("building the method table: %s is not in the schema of %s", name, k.Version.Release)
		}
		k.routes[name] = handler
	}
	return nil
}

// Go runs f in a goroutine that Close waits for.
func (k *Kernel) Go(f func()) { k.group.Go(f) }

// Context returns the context that Close cancels.
func (k *Kernel) Context() context.Context { return k.ctx }

// Close stops all guests and tasks and waits for them.
func (k *Kernel) Close() {
	k.cancel()
	k.group.Wait()
}

// HA is the state of the HA manager's service.
type HA struct {
	// Stopped means that the service does not run.
	Stopped bool
	// Used means that the manager became active, which it does for its first resource or command. It writes its status
	// from then on.
	Used bool
}

// Use makes the manager active, if it runs.
func (ha *HA) Use() { ha.Used = ha.Used || !ha.Stopped }

// Version describes a Proxmox release: all differences between the releases that are not in their schemas.
type Version struct {
	Release string // "8.4"
	Full    string // "8.4.21"
	RepoID  string
	QEMU    string
	// MissingMethods exist only in the other release.
	MissingMethods []string
	// EarlyLockCheck means that config writes check digest and lock also before they wait for the file lock.
	EarlyLockCheck bool
	// CloneAnnounced means that the log of a clone starts with the new VMID and contains each allocated volume.
	CloneAnnounced bool
	// HAGroupsMigrated means that rules replaced HA groups, and that the API of the groups always fails.
	HAGroupsMigrated bool
	// NetworkRows means that /cluster/resources has "network" rows instead of "sdn" rows.
	NetworkRows bool
	// HostRows means that /cluster/resources contains the HA state and the architecture of hosts.
	HostRows bool
	// HostMemory means that guests report memhost and pressure figures.
	HostMemory bool
	// BridgeErrorInTask means that a start task fails with the error of the bridge instead of the exit code of QEMU.
	BridgeErrorInTask bool
	// CreateChecksTags means that the create task checks restricted tags.
	CreateChecksTags bool
	// AbstractCPUs means that the list of CPU models marks those that no CPU is an example of.
	AbstractCPUs bool
	// ResizePreallocates means that qemu-img is called with a preallocation to resize a file.
	ResizePreallocates bool
	// JSONLine and UploadLine are the line numbers in error texts of Proxmox's HTTP server.
	JSONLine, UploadLine int
	// AgentPingText is the line in the log of a shutdown if the guest agent does not answer.
	AgentPingText string
}

// Versions are the simulated releases.
var Versions = map[string]Version{
	"8.4": {
		Release: "8.4", Full: "8.4.21", RepoID: "2606ac85", QEMU: "9.2.0", JSONLine: 917, UploadLine: 1317,
		MissingMethods: []string{"GET /cluster/ha/rules", "POST /cluster/ha/rules", "GET /cluster/ha/rules/{rule}", "PUT /cluster/ha/rules/{rule}", "DELETE /cluster/ha/rules/{rule}", "GET /cluster/qemu/custom-cpu-models"},
		AgentPingText:  "QEMU Guest Agent is not running - VM %d qmp command 'guest-ping' failed - got timeout",
	},
	"9.2": {
		Release: "9.2", Full: "9.2.11", RepoID: "7f0ec0b0", QEMU: "11.0.0", JSONLine: 934, UploadLine: 1370,
		EarlyLockCheck: true, CloneAnnounced: true, HAGroupsMigrated: true, NetworkRows: true, HostRows: true, HostMemory: true,
		BridgeErrorInTask: true, CreateChecksTags: true, AbstractCPUs: true, ResizePreallocates: true,
		AgentPingText: "QEMU Guest Agent is not running - VM %d qga command 'guest-ping' failed - got timeout",
	},
}

func (v Version) isMissing(method string) bool { return slices.Contains(v.MissingMethods, method) }

// SetOptions sets options of datacenter.cfg.
func (k *Kernel) SetOptions(options map[string]string) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	maps.Copy(k.Options, options)
}

// AllowedTags returns the tags that "user-tag-access" allows the caller to set. Callers that can modify the cluster can
// set registered tags, too. The caller holds the mutex.
func (k *Kernel) AllowedTags(r *api.Request, modify bool) []string {
	tags := map[string]bool{}
	access := qm.ParseFields(k.Options["user-tag-access"])
	mode := cmp.Or(access["user-allow"], "free")
	if mode == "list" || mode == "existing" {
		for _, t := range strings.FieldsFunc(access["user-allow-list"], func(c rune) bool { return c == ';' }) {
			tags[t] = true
		}
	}
	if mode == "free" || mode == "existing" {
		for _, g := range k.Guests {
			if k.Access.Has(r.Who, "/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				for _, t := range qm.TagList(g.Config.Options["tags"]) {
					tags[t] = true
				}
			}
		}
	}
	for _, t := range qm.TagList(k.Options["registered-tags"]) {
		if modify {
			tags[t] = true
		} else {
			delete(tags, t)
		}
	}
	out := slices.Sorted(maps.Keys(tags))
	if out == nil {
		out = []string{}
	}
	return out
}

// Host is a Proxmox node.
type Host struct {
	Name                    string
	Sockets, Cores, Threads int
	Memory                  int64
	IP                      string
	Online                  bool
	// Maintenance means that the HA manager drains the host.
	Maintenance bool
	// Arch is empty for x86_64.
	Arch string
	// Unreachable is how connections to the host fail while it is down: "refused", "noroute" or "timeout".
	Unreachable string
	// DownloadRate is the bandwidth for downloads in bytes per second. 0 means unlimited.
	DownloadRate int64
	Bridges      []Bridge
	PCI          []map[string]any
	NUMANodes    int
	// Report is the last report of pvestatd, nil if there is none since the host is up.
	Report   *Report
	BootedAt time.Time
	// Config is the node config, for example "description" and "wakeonlan".
	Config map[string]string
	// Votes is the number of votes of the host for quorum.
	Votes int
	// Ceph are the IDs of the Ceph daemons on the host by type: mon, mgr, mds or osd. It is nil if Ceph is not installed.
	Ceph map[string][]string
	// ShutdownTime is how long the host takes to power off after its guests are stopped, BootTime how long it takes to
	// boot.
	ShutdownTime, BootTime time.Duration
	// TaskListDelay is how long lists show a task as running after its end.
	TaskListDelay time.Duration
	// BootFails means that the host does not boot when it is woken.
	BootFails bool
	// ShuttingDown means that the host is up, but about to power off. Booting means that it was powered on and is not up
	// yet.
	ShuttingDown, Booting bool
	// cutOff means that a partition separates the host from those without this flag.
	cutOff bool
	// quorumRegained means that /cluster/status did not report the return of quorum yet.
	quorumRegained bool
	workers        chan struct{} // slots for the busy workers of its API daemon
}

// Bridge is a network bridge of a host.
type Bridge struct {
	Name, CIDR, Gateway, Ports string
	VLANAware                  bool
}

// Report is a report of pvestatd about a host.
type Report struct {
	Host     api.Row
	Guests   map[int]GuestFigures
	Storages map[string]int64 // bytes in use
}

// GuestFigures is a report of pvestatd about a guest. It is a struct and not a row because a cluster can have thousands
// of guests, reported every few real milliseconds.
type GuestFigures struct {
	Name, Status               string
	Template                   bool
	Uptime                     int64
	MaxCPU                     int
	CPU                        float64
	MaxMemory, Memory, MaxDisk int64
}

// CPUs returns the number of hardware threads.
func (h *Host) CPUs() int { return h.Sockets * h.Cores * max(h.Threads, 1) }

// Status returns "online", "offline", or "unknown" if the host has not reported.
func (h *Host) Status() string {
	switch {
	case !h.Online:
		return "offline"
	case h.Report == nil:
		return "unknown"
	default:
		return "online"
	}
}

// AddHost adds a host to the cluster.
func (k *Kernel) AddHost(h *Host) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if h.IP == "" {
		h.IP = fmt.Sprintf("10.97.%d.%d", len(k.Hosts)/250, len(k.Hosts)%250+2)
	}
	h.workers = make(chan struct{}, daemonWorkers)
	// Longer than what a client with a faster clock measures: a shorter time would mean that the host was restarted.
	h.BootedAt = time.Now().Add(-30 * 24 * time.Hour)
	h.Votes = cmp.Or(h.Votes, 1)
	if h.Config == nil {
		h.Config = map[string]string{}
	}
	if h.Maintenance {
		k.HA.Use()
	}
	k.Hosts = append(k.Hosts, h)
	k.hostsByName[h.Name] = h
}

// RemoveHost removes a host that is down from the cluster, as "pvecm delnode" does. The configs of its guests stay in
// /etc/pve/nodes, so the guests stay listed.
func (k *Kernel) RemoveHost(name string) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	h := k.Host(name)
	switch {
	case h == nil:
		return api.Failf("there is no host '%s'", name)
	case h.Online:
		return api.Failf("host '%s' is online: power it off before it is removed", name)
	}
	k.Hosts = slices.DeleteFunc(k.Hosts, func(other *Host) bool { return other == h })
	delete(k.hostsByName, name)
	return nil
}

// Host returns a host by name, or nil. The caller holds the mutex.
func (k *Kernel) Host(name string) *Host { return k.hostsByName[name] }

// ServingHost returns the host that received a request: that of the endpoint, otherwise the first one that is up, or
// nil. The caller holds the mutex.
func (k *Kernel) ServingHost(r *api.Request) *Host {
	if r.Serving != "" {
		return k.Host(r.Serving)
	}
	for _, h := range k.Hosts {
		if h.Online {
			return h
		}
	}
	return nil
}

// SetMaintenance enables or disables maintenance mode, as "ha-manager crm-command node-maintenance" does.
func (k *Kernel) SetMaintenance(name string, on bool) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	h := k.Host(name)
	if h == nil {
		return api.Failf("no such cluster node '%s'", name)
	}
	h.Maintenance = on
	k.HA.Use()
	return nil
}
