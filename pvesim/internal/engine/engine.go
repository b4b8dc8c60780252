// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine is the simulated cluster: hosts, storages, guests, and what each API method does to them.
//
// One mutex guards the state. A method holds it only while it looks and changes; whatever takes time (locks, copies,
// boots) happens in tasks and waits outside of it.
package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Config is what an engine starts from.
type Config struct {
	Version     Version
	ClusterName string // empty: a stand-alone host
	Speed       float64
	Latency     map[string]Latency // by storage type; missing types use the default profile
	Boot        BootFunc
}

// BootFunc runs a guest until the context ends or the guest powers itself off by returning.
type BootFunc func(ctx context.Context, in *Instance)

// Engine is one simulated Proxmox cluster.
type Engine struct {
	Clock   *clock.Clock
	Access  *access.Store
	Signer  *access.Signer
	Tasks   *tasks.Registry
	Locks   *locks.Table
	Schema  *schema.Catalogue
	Version Version

	name    string
	boot    BootFunc
	latency map[string]Latency
	ctx     context.Context
	cancel  context.CancelFunc
	group   *clock.Group
	routes  map[string]Handler

	mu          sync.Mutex
	hosts       []*Host
	byName      map[string]*Host
	definitions []*Storage
	volumes     map[string]*Volume // by key(host, volid)
	blobs       map[[32]byte][]byte
	guests      map[int]*Guest
	options     map[string]string // datacenter.cfg
	ha          map[string]map[string]string
	firewall    *firewallState
	mappings    map[string]*collection
	haRules     *collection
	haGroups    *collection
	zones       *collection
	vnets       *collection
	subnets     map[string]*subnet // by virtual network
	noQuorum    bool
	nextPID     int
}

// Host is one Proxmox node.
type Host struct {
	Name                    string
	Sockets, Cores, Threads int
	Memory                  int64
	IP                      string
	Online                  bool
	// Maintenance: the HA manager drains the host.
	Maintenance bool
	// Arch is empty for x86_64.
	Arch string
	// Unreachable says how a connection to the host fails while it is down: "refused", "noroute" or "timeout".
	Unreachable string
	// DownloadRate is what the host fetches from elsewhere, in bytes per second; 0 means at once.
	DownloadRate int64
	Bridges      []Bridge
	PCI          []map[string]any
	NUMANodes    int
	// report is what pvestatd last reported, nil if it did not since the host is up.
	report   *hostReport
	bootedAt time.Time
	workers  chan struct{} // the free worker processes of its API daemon
}

// hostReport is what pvestatd reports about a host.
type hostReport struct {
	host     row
	guests   map[int]figures
	storages map[string]int64 // bytes in use
}

// Bridge is a network bridge of a host.
type Bridge struct {
	Name, CIDR, Gateway, Ports string
	VLANAware                  bool
}

// CPUs is the number of hardware threads of the host.
func (h *Host) CPUs() int { return h.Sockets * h.Cores * max(h.Threads, 1) }

// Guest is a VM or container, ours or not.
type Guest struct {
	VMID   int
	Type   string // "qemu" or "lxc"
	Host   string
	Config *qm.Config

	instance  *Instance
	paused    bool
	rebooting bool      // the next power-off of the guest is a reboot
	uptime    time.Time // when QEMU started; zero while it does not run
	pid       int
	pci       []string // addresses of the devices that it has, from the beginning of its start on
}

// New builds an empty cluster; hosts and the rest are added before the first request.
func New(cfg Config) (*Engine, error) {
	catalogue, err := schema.Load(cfg.Version.Release)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, group := clock.New(cfg.Speed), clock.NewGroup()
	e := &Engine{
		Clock: c, Access: access.New(schema.Privileges(cfg.Version.Release)), Signer: access.NewSigner(),
		Tasks: tasks.NewRegistry(ctx, c, group), Locks: locks.New(c), Schema: catalogue, Version: cfg.Version,
		name: cfg.ClusterName, boot: cfg.Boot, latency: cfg.Latency, ctx: ctx, cancel: cancel, group: group,
		byName: map[string]*Host{}, volumes: map[string]*Volume{}, blobs: map[[32]byte][]byte{}, guests: map[int]*Guest{},
		options: map[string]string{}, ha: map[string]map[string]string{}, firewall: newFirewallState(),
		mappings: map[string]*collection{}, subnets: map[string]*subnet{}, nextPID: 15000,
	}
	e.addCollections()
	e.routes = e.handlers()
	for name := range e.routes {
		if catalogue.Method(name) == nil && !cfg.Version.lacks(name) {
			cancel()
			return nil, fmt.Errorf("building the method table: %s is not in the schema of %s", name, cfg.Version.Release)
		}
	}
	return e, nil
}

// Run starts what happens by itself: pvestatd's reports. It returns at once.
func (e *Engine) Run() {
	e.mu.Lock()
	e.report()
	e.mu.Unlock()
	e.goBackground(func() {
		for e.Clock.Sleep(e.context(), statPeriod) == nil {
			e.mu.Lock()
			e.report()
			e.mu.Unlock()
		}
	})
}

// goBackground runs f until it returns; Close waits for it.
func (e *Engine) goBackground(f func()) { e.group.Go(f) }

// context ends when the simulator is closed.
func (e *Engine) context() context.Context { return e.ctx }

// Close ends all guests and tasks and waits for them.
func (e *Engine) Close() {
	e.cancel()
	e.group.Wait()
}

// AddHost adds a host to the cluster.
func (e *Engine) AddHost(h *Host) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.IP == "" {
		h.IP = fmt.Sprintf("10.97.%d.%d", len(e.hosts)/250, len(e.hosts)%250+2)
	}
	h.workers = make(chan struct{}, daemonWorkers)
	h.bootedAt = time.Now().Add(-time.Hour)
	e.hosts = append(e.hosts, h)
	e.byName[h.Name] = h
}

func (e *Engine) host(name string) *Host { return e.byName[name] }

// Serving is the host that answers requests: the first one that is up.
func (e *Engine) Serving() *Host {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.hosts {
		if h.Online {
			return h
		}
	}
	return nil
}

// AddGuest places a guest that runs since then, or not at all where that is zero; its drives' volumes are created as
// they are needed.
func (e *Engine) AddGuest(g *Guest, since time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.guests[g.VMID] != nil {
		return fmt.Errorf("adding guest %d: the VMID is used twice", g.VMID)
	}
	if e.host(g.Host) == nil {
		return fmt.Errorf("adding guest %d: there is no host %q", g.VMID, g.Host)
	}
	for _, key := range qm.DriveKeys(g.Config.Options) {
		if err := e.adoptDrive(g, key); err != nil {
			return fmt.Errorf("adding guest %d: %w", g.VMID, err)
		}
	}
	e.guests[g.VMID] = g
	if !since.IsZero() && g.Type == "qemu" {
		e.powerOn(g)
	}
	g.uptime = since
	return nil
}

// adoptDrive makes the volume of a drive that the scenario only mentions.
func (e *Engine) adoptDrive(g *Guest, key string) error {
	d, ok := qm.ParseDrive(key, g.Config.Options[key])
	if !ok {
		return fmt.Errorf("drive %s: cannot read %q", key, g.Config.Options[key])
	}
	if !d.HasVolume() {
		return nil
	}
	s := e.storage(d.Storage())
	if s == nil {
		return fmt.Errorf("drive %s: there is no storage %q", key, d.Storage())
	}
	if e.volume(g.Host, d.File) != nil {
		return nil
	}
	size, _ := qm.ParseSize(d.Opts["size"])
	if size == 0 && d.IsCloudInit() {
		size = cloudInitSize
	}
	used := size
	if s.kind().thin {
		used = size / 2 // nobody fills a thin disk
	}
	e.putVolume(&Volume{Storage: s.ID, Host: g.Host, Name: d.File[len(s.ID)+1:], Size: size, Used: used, Owner: g.VMID})
	return nil
}

// guestOn finds a VM on the host that the request names; a VM on another host counts as missing.
func (e *Engine) guestOn(host string, vmid int) *Guest {
	g := e.guests[vmid]
	if g == nil || g.Host != host || g.Type != "qemu" {
		return nil
	}
	return g
}

// sortedGuests lists all guests by VMID.
func (e *Engine) sortedGuests() []*Guest {
	out := make([]*Guest, 0, len(e.guests))
	for _, g := range e.guests {
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *Guest) int { return a.VMID - b.VMID })
	return out
}

// addCollections makes the lists of objects that are only stored.
func (e *Engine) addCollections() {
	e.haRules = e.newCollection("rule", "HA rule")
	e.haGroups = e.newCollection("group", "HA group")
	e.zones = e.newCollection("zone", "sdn zone object ID")
	e.zones.readable = func(r *Request, z row) bool {
		return e.Access.HasAny(r.Who, fmt.Sprintf("/sdn/zones/%v", z["zone"]), "SDN.Audit", "SDN.Use", "SDN.Allocate")
	}
	e.vnets = e.newCollection("vnet", "sdn vnet object ID")
	e.vnets.readable = func(r *Request, v row) bool {
		return e.Access.HasAny(r.Who, fmt.Sprintf("/sdn/zones/%v/%v", v["zone"], v["vnet"]), "SDN.Audit", "SDN.Use", "SDN.Allocate")
	}
	for _, kind := range []string{"pci", "usb", "dir"} {
		c := e.newCollection("id", kind+" mapping")
		c.readable = func(r *Request, m row) bool {
			return e.Access.HasAny(r.Who, fmt.Sprintf("/mapping/%s/%v", kind, m["id"]), "Mapping.Audit", "Mapping.Use", "Mapping.Modify")
		}
		e.mappings[kind] = c
	}
}

// AddMapping adds a resource mapping; kind is "pci", "usb" or "dir".
func (e *Engine) AddMapping(kind, id string, fields map[string]any) {
	if c := e.mappings[kind]; c != nil {
		c.add(id, fields)
	}
}

// AddZone adds an SDN zone.
func (e *Engine) AddZone(id string, fields map[string]any) { e.zones.add(id, fields) }

// AddVNet adds a virtual network of a zone; it can be used like a bridge.
func (e *Engine) AddVNet(id string, fields map[string]any) { e.vnets.add(id, fields) }
