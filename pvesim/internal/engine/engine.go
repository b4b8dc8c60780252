// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine is the simulated cluster. It wires the areas of the API together on one kernel.
package engine

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/accessapi"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cluster"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/firewall"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/ha"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/host"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/mapping"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pending"
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
	Latency     map[string]storage.Latency // by storage type; missing types use the default profile
	Boot        power.BootFunc
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
	e := &Engine{
		Kernel: k, Store: storage.New(k, cfg.Latency), Network: sdn.New(k), Mappings: mapping.New(k),
		Firewall: firewall.New(k), Manager: ha.New(k),
	}
	e.Allocator = storage.NewAllocator(e.Store)
	applier := pending.New(e.Store)
	e.Controller = power.New(power.Areas{
		Kernel: k, Store: e.Store, Network: e.Network, Mappings: e.Mappings, HA: e.Manager, Pending: applier,
	}, cfg.Boot)
	e.VMs = qemu.New(qemu.Areas{
		Kernel: k, Store: e.Store, Allocator: e.Allocator, Network: e.Network, HA: e.Manager, Firewall: e.Firewall, Pending: applier,
		Power: e.Controller,
	})
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
