// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/engine"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Options configure the simulator in addition to the scenario. The zero value is usable.
type Options struct {
	// Speed makes simulated time pass faster: 1 is real time, tests use 20 to 100.
	Speed float64
	// RealLockTimeouts makes requests and tasks wait for locks and for workers of the API daemon as long as on a real
	// host, so that a busy machine does not exceed these timeouts. With a higher Speed they are otherwise up to ten times
	// shorter.
	RealLockTimeouts bool
	// StallTimeout is how long a client may pause between requests, or in the middle of a body, before the server closes
	// the connection; 5 s by default. It is real time, because clients send in real time.
	StallTimeout time.Duration
	// Guests runs the guests of the VMs; nil means CooperativeGuests.
	Guests GuestRuntime
	// Listen is the API's address, "127.0.0.1:0" by default.
	Listen string
	// InMemory serves the API without sockets, to clients that dial with DialContext. A test in a bubble of
	// testing/synctest then has a fake clock: simulated time passes only while the test and the simulator wait, so the
	// load of the machine changes neither durations nor the order of events.
	InMemory bool
	// Web downloads images; nil: over the network.
	Web http.RoundTripper
	// AdminListen is the address of the admin API and status page; empty disables both.
	AdminListen string
	// Seed makes faults with a probability and the durations of stops reproducible.
	Seed uint64
	// KeepRequests limits how many requests are recorded, 100000 by default. Counts are always exact.
	KeepRequests int
	// Dir is an existing directory for disk images and the disks of the VMs, for a runtime that runs operating systems.
	// If it is empty, images are kept in memory, and disks have no files.
	Dir string
	// TemplateImage is the disk image in the boot disks of the scenario's templates; empty means that they are empty.
	// Templates that are created from an image contain that image. It needs Dir.
	TemplateImage string
}

// Simulator is a running Proxmox VE cluster.
type Simulator struct {
	scenario *Scenario
	options  Options
	engine   *engine.Engine
	faults   *faultTable
	requests *recorder
	ca       *authority
	memory   MemoryNetwork

	mu        sync.Mutex
	endpoints map[string]*endpoint // by host; empty for the one of the cluster
	admin     *http.Server
	adminU    string
	closed    bool
	done      sync.WaitGroup
}

// New builds a simulator from a scenario. It serves no requests before Start.
func New(scenario *Scenario, options Options) (*Simulator, error) {
	if scenario == nil {
		return nil, errors.New("building simulator: scenario is nil")
	}
	if err := scenario.validate(); err != nil {
		return nil, fmt.Errorf("building simulator: %w", err)
	}
	if options.Guests == nil {
		options.Guests = CooperativeGuests{}
	}
	if options.Speed <= 0 {
		options.Speed = max(scenario.Speed, 0)
	}
	options.StallTimeout = cmp.Or(options.StallTimeout, defaultStallTimeout)
	s := &Simulator{scenario: scenario, options: options, requests: newRecorder(options.KeepRequests), endpoints: map[string]*endpoint{}}
	latency := map[string]storage.Latency{}
	for typ, profile := range scenario.Latency {
		latency[typ] = storage.Profiles[profile]
	}
	var err error
	s.engine, err = engine.New(engine.Config{
		Version: kernel.Versions[scenario.Version], ClusterName: scenario.Cluster, Speed: options.Speed, RealLockTimeouts: options.RealLockTimeouts, Latency: latency,
		Boot: func(ctx context.Context, in *kernel.Instance) {
			m := newMachine(scenario.Cluster, in)
			m.sleep = s.engine.Clock.Sleep
			options.Guests.Boot(ctx, m)
		},
		Seed: options.Seed, Files: storage.Files{Dir: options.Dir, TemplateImage: options.TemplateImage}, Web: options.Web,
	})
	if err != nil {
		return nil, fmt.Errorf("building simulator: %w", err)
	}
	s.faults = newFaultTable(options.Seed, s.engine.Clock)
	s.engine.Tasks.SetInterference(s.faults.onTask)
	if s.ca, err = newAuthority(); err != nil {
		return nil, fmt.Errorf("building simulator: %w", err)
	}
	if err := s.populate(); err != nil {
		s.engine.Close()
		return nil, fmt.Errorf("building simulator: %w", err)
	}
	return s, nil
}

// populate creates the objects of the scenario.
func (s *Simulator) populate() error {
	sc, e := s.scenario, s.engine
	for _, h := range sc.Hosts {
		host := &kernel.Host{
			Name: h.Name, Sockets: h.Sockets, Cores: h.Cores, Threads: h.Threads, Memory: int64(h.Memory), IP: h.IP,
			Online: !h.Offline, Unreachable: h.Unreachable, PCI: h.PCI, NUMANodes: h.NUMA, Maintenance: h.Maintenance, Arch: h.Arch,
			DownloadRate: int64(h.DownloadRate), Bridges: bridgesOf(h.Bridges),
			Config: maps.Clone(h.Config), Votes: h.Votes, Ceph: cephDaemons(h),
			ShutdownTime: cmp.Or(time.Duration(h.ShutdownTime), DefaultShutdownTime), BootTime: cmp.Or(time.Duration(h.BootTime), DefaultBootTime),
			TaskListDelay: time.Duration(h.TaskListDelay),
		}
		e.AddHost(host)
	}
	for _, st := range sc.Storages {
		e.AddStorage(&storage.Storage{
			ID: st.ID, Type: st.Type, Content: st.Content, Shared: st.Shared, Hosts: st.Hosts, Size: int64(st.Size),
			BaseUsed: int64(st.Used), Path: st.Path, Server: st.Server,
		})
	}
	for _, z := range sc.Zones {
		e.AddZone(z.Zone, map[string]any{"type": z.Type, "ipam": z.IPAM, "dhcp": z.DHCP})
	}
	for _, v := range sc.VNets {
		e.AddVNet(v.VNet, map[string]any{"zone": v.Zone, "type": "vnet", "tag": v.Tag})
		if v.Subnet != "" {
			e.AddSubnet(v.VNet, v.Subnet, v.Gateway)
		}
	}
	for _, m := range sc.Mappings {
		s.AddMapping(m)
	}
	for _, g := range sc.SecurityGroups {
		e.AddSecurityGroup(g.Name, g.Comment)
	}
	e.SetOptions(sc.Options)
	s.populateJobs()
	s.populateFiles()
	if err := s.populateAccess(); err != nil {
		return err
	}
	return s.populateGuests()
}

// AddMapping creates or replaces a resource mapping.
func (s *Simulator) AddMapping(m Mapping) {
	s.engine.AddMapping(m.Kind, m.ID, map[string]any{"map": m.Map, "type": m.Kind})
}

func (s *Simulator) populateFiles() {
	for _, f := range s.scenario.Files {
		s.PutFile(f)
	}
}

// PutFile writes a file to a storage, as an administrator does on the host: some content, such as snippets, cannot be
// uploaded through the API. If the host is empty, the file is written to all hosts.
func (s *Simulator) PutFile(f File) {
	data := []byte(f.Text)
	if f.Text == "" {
		data = make([]byte, min(int64(f.Size), int64(64*MiB)))
	}
	hosts := []string{f.Host}
	if f.Host == "" {
		hosts = nil
		for _, h := range s.scenario.Hosts {
			hosts = append(hosts, h.Name)
		}
	}
	for _, h := range hosts {
		s.engine.PutFile(h, f.Storage, f.Name, data)
	}
}

func (s *Simulator) populateAccess() error {
	for _, p := range s.scenario.Pools {
		s.engine.Access.AddPool(p.ID, p.Comment, p.VMs, p.Storages)
	}
	return s.engine.Access.Update(func(d *access.Data) error {
		for _, r := range s.scenario.Roles {
			d.Roles[r.ID] = &access.Role{Privileges: r.Privileges}
		}
		for _, u := range s.scenario.Users {
			user := &access.User{
				ID: u.ID, Password: u.Password, Comment: u.Comment, Email: u.Email, Groups: u.Groups, Disabled: u.Disabled,
				Tokens: map[string]*access.Token{},
			}
			for _, g := range u.Groups {
				d.Groups[g] = ""
			}
			for _, t := range u.Tokens {
				user.Tokens[t.ID] = &access.Token{ID: t.ID, Secret: t.Secret, Privsep: t.Privsep, Expire: t.Expire}
			}
			d.Users[u.ID] = user
		}
		for i, a := range s.scenario.ACLs {
			if d.Roles[a.Role] == nil {
				return bad(fmt.Sprintf("there is no role %q", a.Role), "acls", i, "role")
			}
			kind, id := "user", a.User
			if a.Group != "" {
				kind, id = "group", a.Group
			} else if a.Token != "" {
				kind, id = "token", a.Token
			}
			d.Grant(access.Entry{Path: a.Path, Kind: kind, ID: id, Role: a.Role, Propagate: !a.NoPropagate})
		}
		return nil
	})
}

func (s *Simulator) populateGuests() error {
	for i, g := range s.scenario.Guests {
		config := qm.New(g.Config)
		typ := g.Type
		if typ == "" {
			typ = "qemu"
		}
		if g.Name != "" {
			config.Options[map[string]string{"qemu": "name", "lxc": "hostname"}[typ]] = g.Name
		}
		guest := &kernel.Guest{VMID: g.VMID, Type: typ, Host: g.Host, Config: config}
		var since time.Time
		if g.Status == "running" {
			since = time.Now().Add(-time.Duration(g.Uptime))
		}
		if err := s.engine.AddGuest(guest, since); err != nil {
			return bad(err.Error(), "guests", i)
		}
		if g.Pool != "" {
			err := s.engine.Access.Update(func(d *access.Data) error {
				if d.Pools[g.Pool] == nil {
					return bad(fmt.Sprintf("there is no pool %q", g.Pool), "guests", i, "pool")
				}
				d.Pools[g.Pool].VMs[g.VMID] = true
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Start starts the servers. The simulator runs until Close is called or ctx is done.
func (s *Simulator) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.endpoints) > 0 || s.closed {
		return errors.New("starting simulator: already started")
	}
	e, err := s.listen(ctx, "", cmp.Or(s.options.Listen, anyPort))
	if err != nil {
		return fmt.Errorf("starting simulator: %w", err)
	}
	if err := s.startAdmin(ctx); err != nil {
		_ = e.listener.Close()
		return err
	}
	s.engine.Run()
	s.serve(e)
	context.AfterFunc(ctx, s.Close)
	return nil
}

// Close closes all connections, stops tasks and guests, and waits until they have ended.
func (s *Simulator) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	if s.admin != nil {
		_ = s.admin.Close()
	}
	for _, e := range s.endpoints {
		_ = e.server.Close()
	}
	s.mu.Unlock()
	s.engine.Close()
	s.done.Wait()
}

// URL returns the base URL of the API: https://127.0.0.1:PORT/api2/json.
func (s *Simulator) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.endpoints[""]; e != nil {
		return e.url()
	}
	return ""
}

// AdminURL returns the base URL of the admin API, or "" if it is disabled.
func (s *Simulator) AdminURL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.adminU
}

// CAPEM returns the certificate of the CA that issued the API's certificate.
func (s *Simulator) CAPEM() []byte { return s.ca.pem }

// Host returns the API's host and port.
func (s *Simulator) Host() string {
	return strings.TrimSuffix(strings.TrimPrefix(s.URL(), "https://"), "/api2/json")
}
