// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine is the simulated cluster. It wires the areas of the API together on one kernel.
package engine

import (
	"cmp"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/accessapi"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cluster"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/firewall"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/ha"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/host"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/mapping"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pvestatd"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qemu"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Config is the configuration of an engine.
type Config struct {
	Version     kernel.Version
	ClusterName string // empty for a standalone host
	Speed       float64
	// RealLockTimeouts makes lock timeouts pass in real time.
	RealLockTimeouts bool
	Latency          map[string]storage.Latency // by storage type; missing types use the default profile
	Boot             power.BootFunc
	Seed             uint64
	Files            storage.Files
	Web              http.RoundTripper // downloads images; nil: over the network
}

// Engine is a simulated Proxmox cluster. It embeds its areas, so their methods are its methods.
type Engine struct {
	*kernel.Kernel
	*storage.Store
	*storage.Allocator
	*sdn.Network
	*mapping.Mappings
	*firewall.Firewall
	*ha.Manager
	*power.Controller
	*qemu.VMs

	stats *pvestatd.Daemon
}

// New returns an empty cluster. Hosts and everything else are added before the first request. It fails if the version
// has no schema, or if a handler is not in it.
func New(cfg Config) (*Engine, error) {
	k, err := kernel.New(cfg.Version, cfg.ClusterName, cfg.Speed)
	if err != nil {
		return nil, err
	}
	k.Clock.RealLockTimeouts = cfg.RealLockTimeouts
	e := &Engine{
		Kernel: k, Store: storage.New(k, cfg.Latency, cfg.Files, cfg.Web), Network: sdn.New(k), Mappings: mapping.New(k),
		Firewall: firewall.New(k), Manager: ha.New(k),
	}
	e.Allocator = storage.NewAllocator(e.Store)
	e.Controller = power.New(k, e.Store, e.Network, e.Mappings, e.Manager, cfg.Boot, cfg.Seed)
	e.VMs = qemu.New(k, e.Store, e.Network, e.Manager, e.Firewall, e.Controller)
	e.stats = pvestatd.New(k, e.Store, e.Manager)
	for _, routes := range []map[string]api.Handler{
		accessapi.Routes(k), cluster.Routes(k, e.Store, e.Network, e.stats), host.Routes(k, e.Network, e.stats), e.Store.Routes(),
		e.Network.Routes(), e.Mappings.Routes(), e.Firewall.Routes(), e.Manager.Routes(), e.Controller.Routes(), e.VMs.Routes(),
	} {
		if err := k.Handle(routes); err != nil {
			k.Close()
			return nil, err
		}
	}
	return e, nil
}

// Run starts the status daemon. It does not block.
func (e *Engine) Run() { e.stats.Run() }

// Overview is the state of the cluster for the status page.
type Overview struct {
	Cluster, Version string
	Quorate          bool
	Hosts            []HostView
	Guests           []GuestView
	Storages         []StorageView
	Tasks            []TaskView
}

// HostView is a host and the configured resources of its guests.
type HostView struct {
	Name, Status           string
	CPUs, GuestCPUs        int
	Memory, GuestMemory    int64
	Running, Guests, Tasks int
}

// GuestView is a VM or container.
type GuestView struct {
	VMID                           int
	Name, Host, Status, Lock, Tags string
	CPUs                           int
	Memory                         int64
	Uptime                         time.Duration
	Template                       bool
	Options                        map[string]string
}

// StorageView is a storage on one host, or a shared storage.
type StorageView struct {
	ID, Type, Host string
	Used, Size     int64
	Volumes        int
	Full           bool
}

// TaskView is a task.
type TaskView struct {
	UPID, Type, ID, Host, User, Status string
	Start                              time.Time
	Running                            bool
}

// Overview returns the current state with at most maxTasks tasks.
func (e *Engine) Overview(maxTasks int) Overview {
	out := Overview{Cluster: e.Kernel.Name, Version: e.Kernel.Version.Full}
	running := map[string]int{}
	for _, t := range e.Kernel.Tasks.List() {
		s := t.State()
		if s.Running {
			running[t.UPID.Host]++
		}
		if len(out.Tasks) >= maxTasks {
			continue
		}
		status := s.Exit
		if s.Running {
			status = "running"
		}
		out.Tasks = append(out.Tasks, TaskView{
			UPID: t.UPID.String(), Type: t.UPID.Type, ID: t.UPID.ID, Host: t.UPID.Host, User: t.UPID.User, Status: status,
			Start: time.Unix(t.UPID.StartTime, 0), Running: s.Running,
		})
	}
	e.Kernel.Mu.Lock()
	defer e.Kernel.Mu.Unlock()
	out.Quorate = e.Kernel.IsQuorate()
	hosts := map[string]*HostView{}
	for _, h := range e.Kernel.Hosts {
		hosts[h.Name] = &HostView{Name: h.Name, Status: h.Status(), CPUs: h.CPUs(), Memory: h.Memory, Tasks: running[h.Name]}
	}
	for _, g := range e.Kernel.SortedGuests() {
		out.Guests = append(out.Guests, e.guestView(g))
		if h := hosts[g.Host]; h != nil && !g.Config.IsTemplate() {
			h.Guests++
			if g.IsRunning() {
				h.Running++
				h.GuestCPUs += e.Kernel.GuestCPUs(g)
				h.GuestMemory += g.Memory()
			}
		}
	}
	for _, h := range e.Kernel.Hosts {
		out.Hosts = append(out.Hosts, *hosts[h.Name])
	}
	out.Storages = e.storageViews()
	return out
}

func (e *Engine) guestView(g *kernel.Guest) GuestView {
	v := GuestView{
		VMID: g.VMID, Name: g.Name(), Host: g.Host, Status: g.QMPStatus(), Lock: g.Config.Lock(), Tags: strings.ReplaceAll(g.Config.Options["tags"], ";", " "),
		CPUs: e.Kernel.GuestCPUs(g), Memory: g.Memory(), Template: g.Config.IsTemplate(), Options: maps.Clone(g.Config.Options),
	}
	if g.IsRunning() {
		v.Uptime = time.Since(g.StartedAt).Truncate(time.Second)
	}
	return v
}

func (e *Engine) storageViews() []StorageView {
	usages := e.Store.Usages()
	var out []StorageView
	for _, s := range e.Store.Storages() {
		hosts := []string{""}
		if !s.Shared {
			hosts = nil
			for _, h := range e.Kernel.Hosts {
				if s.IsAvailableOn(h.Name) {
					hosts = append(hosts, h.Name)
				}
			}
		}
		for _, h := range hosts {
			u := usages[s.ID+"|"+h]
			out = append(out, StorageView{
				ID: s.ID, Type: s.Type, Host: cmp.Or(h, "shared"), Used: min(s.BaseUsed+u.Bytes, s.Size), Size: s.Size, Volumes: u.Volumes, Full: s.Full,
			})
		}
	}
	return out
}
