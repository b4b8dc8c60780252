// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster serves the API of the cluster itself: resources, status, options and resource pools.
package cluster

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pvestatd"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// Handlers by kind of object.
type (
	handlers         struct{ k *kernel.Kernel }
	resourceHandlers struct {
		k       *kernel.Kernel
		store   *storage.Store
		network *sdn.Network
		stats   *pvestatd.Daemon
	}
	poolHandlers struct {
		k     *kernel.Kernel
		store *storage.Store
		stats *pvestatd.Daemon
	}
)

// Routes returns the handlers of the cluster by method.
func Routes(k *kernel.Kernel, store *storage.Store, network *sdn.Network, stats *pvestatd.Daemon) map[string]api.Handler {
	ch := handlers{k}
	rh := resourceHandlers{k, store, network, stats}
	ph := poolHandlers{k, store, stats}
	return map[string]api.Handler{
		"GET /version":              ch.getVersion,
		"GET /nodes/{node}/version": ch.getVersion,
		"GET /cluster":              api.Index("name", "resources", "status", "nextid", "options", "tasks", "ha", "firewall", "mapping", "sdn"),
		"GET /cluster/resources":    rh.getResources,
		"GET /cluster/status":       ch.getClusterStatus,
		"GET /cluster/config/nodes": ch.getConfigNodes,
		"GET /cluster/nextid":       ch.getNextID,
		"GET /cluster/options":      ch.getOptions,
		"PUT /cluster/options":      ch.putOptions,
		"GET /cluster/backup":       api.EmptyList,
		"GET /cluster/log":          api.EmptyList,
		"GET /cluster/replication":  api.EmptyList,
		"GET /pools":                ph.getPools,
		"POST /pools":               ph.postPool,
		"PUT /pools":                ph.putPool,
		"DELETE /pools":             ph.deletePool,
		"GET /pools/{poolid}":       ph.getPool,
		"PUT /pools/{poolid}":       ph.putPool,
		"DELETE /pools/{poolid}":    ph.deletePool,
	}
}
