// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// jobHandlers serve jobs that are listed and never run.
type jobHandlers struct{ k *kernel.Kernel }

func (jh *jobHandlers) routes() map[string]api.Handler {
	return map[string]api.Handler{
		"GET /cluster/backup":           kernel.Read(jh.k, jh.getBackupJobs),
		"GET /cluster/replication":      kernel.Read(jh.k, jh.getReplicationJobs),
		"GET /nodes/{node}/replication": kernel.Read(jh.k, jh.getReplicationStatus),
		"GET /cluster/ceph":             api.Index("name", "metadata"),
		"GET /cluster/ceph/metadata":    kernel.Read(jh.k, jh.getCephMetadata),
		"GET /nodes/{node}/ceph/status": kernel.Read(jh.k, jh.getCephStatus),
		"GET /cluster/config/qdevice":   kernel.Read(jh.k, jh.getQDevice),
	}
}

func (jh *jobHandlers) getBackupJobs(*api.Request) (any, error) {
	return slices.Clone(jh.k.BackupJobs), nil
}

// getReplicationJobs lists the jobs of the guests that the caller can audit.
func (jh *jobHandlers) getReplicationJobs(r *api.Request) (any, error) {
	viewer, rows := jh.k.Access.Viewer(r.Who), []api.Row{}
	for _, job := range jh.k.ReplicationJobs {
		if viewer.Has(fmt.Sprintf("/vms/%v", job["guest"]), "VM.Audit") {
			rows = append(rows, job)
		}
	}
	return rows, nil
}

// getReplicationStatus lists the jobs of the guests on a host.
func (jh *jobHandlers) getReplicationStatus(r *api.Request) (any, error) {
	viewer, rows := jh.k.Access.Viewer(r.Who), []api.Row{}
	for _, job := range jh.k.ReplicationJobs {
		vmid, _ := job["guest"].(int)
		g := jh.k.Guests[vmid]
		if g == nil || g.Host != r.Host || !viewer.Has(fmt.Sprintf("/vms/%d", vmid), "VM.Audit") {
			continue
		}
		row := api.Row{"source": g.Host, "vmtype": g.Type, "last_sync": 0, "last_try": 0, "next_sync": 0, "fail_count": 0}
		maps.Copy(row, job)
		rows = append(rows, row)
	}
	return rows, nil
}

// checkCeph returns the error of a host without Ceph.
func checkCeph(h *kernel.Host) error {
	if h == nil || h.Ceph == nil {
		return api.Failf("binary not installed: /usr/bin/ceph-mon")
	}
	return nil
}

// getCephMetadata lists the Ceph daemons of all hosts.
func (jh *jobHandlers) getCephMetadata(r *api.Request) (any, error) {
	if err := checkCeph(jh.k.ServingHost(r)); err != nil {
		return nil, err
	}
	osds := []api.Row{}
	out := api.Row{"mon": api.Row{}, "mgr": api.Row{}, "mds": api.Row{}, "node": api.Row{}}
	for _, h := range jh.k.Hosts {
		for kind, ids := range h.Ceph {
			for _, id := range ids {
				daemon := api.Row{"hostname": h.Name, "ceph_release": "squid", "ceph_version_short": "19.2.3"}
				if kind == "osd" {
					daemon["id"] = id
					osds = append(osds, daemon)
					continue
				}
				daemon["name"] = id
				out[kind].(api.Row)[id+"@"+h.Name] = daemon
			}
		}
	}
	out["osd"] = osds
	return out, nil
}

func (jh *jobHandlers) getCephStatus(r *api.Request) (any, error) {
	if err := checkCeph(jh.k.Host(r.Host)); err != nil {
		return nil, err
	}
	return api.Row{"health": api.Row{"status": "HEALTH_OK"}}, nil
}

// getQDevice returns the state of the external vote daemon; it is empty if there is none.
func (jh *jobHandlers) getQDevice(*api.Request) (any, error) {
	if jh.k.QDeviceVotes() == 0 {
		return api.Row{}, nil
	}
	algorithm := "LMS"
	if len(jh.k.Hosts)%2 == 0 {
		algorithm = "Fifty-Fifty split"
	}
	return api.Row{
		"Algorithm": algorithm, "Model": "Net", "QNetd host": "10.97.255.2:5403", "State": "Connected", "Tie-breaker": "Node with lowest node ID",
	}, nil
}
