// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host serves the API of the hosts: status, hardware, network and tasks.
package host

import (
	"context"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/pvestatd"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/sdn"
)

// Handlers by kind of object.
type (
	handlers struct {
		k     *kernel.Kernel
		stats *pvestatd.Daemon
	}
	networkHandlers struct {
		k       *kernel.Kernel
		network *sdn.Network
	}
	taskHandlers struct{ k *kernel.Kernel }
)

// Routes returns the handlers of the hosts by method.
func Routes(k *kernel.Kernel, network *sdn.Network, stats *pvestatd.Daemon) map[string]api.Handler {
	hh, nh, th := handlers{k, stats}, networkHandlers{k, network}, taskHandlers{k}
	const host = "/nodes/{node}"
	return map[string]api.Handler{
		"GET /nodes":                                  hh.getHosts,
		"GET " + host:                                 api.Index("name", "qemu", "lxc", "storage", "status", "tasks", "network", "firewall", "version"),
		"GET " + host + "/status":                     hh.getHostStatus,
		"GET " + host + "/time":                       hh.getHostTime,
		"GET " + host + "/dns":                        hh.getDNS,
		"GET " + host + "/subscription":               hh.getSubscription,
		"GET " + host + "/hardware/pci":               hh.getPCI,
		"GET " + host + "/capabilities/qemu/cpu":      hh.getCPUModels,
		"GET " + host + "/capabilities/qemu/machines": hh.getMachines,
		"GET " + host + "/rrddata":                    hh.getHostRRD,
		"GET " + host + "/network":                    nh.getNetwork,
		"GET " + host + "/network/{iface}":            nh.getInterface,
		"GET " + host + "/tasks":                      th.getTasks,
		"GET " + host + "/tasks/{upid}":               th.getTaskIndex,
		"DELETE " + host + "/tasks/{upid}":            th.deleteTask,
		"GET " + host + "/tasks/{upid}/log":           th.getTaskLog,
		"GET " + host + "/tasks/{upid}/status":        th.getTaskStatus,
		"GET /cluster/tasks":                          th.getClusterTasks,
	}
}

func (hh *handlers) getSubscription(context.Context, *api.Request) (api.Response, error) {
	return api.Response{Data: api.Row{"status": "notfound", "message": "There is no subscription key"}}, nil
}
