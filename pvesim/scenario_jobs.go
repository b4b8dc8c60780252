// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// cephDaemons returns the Ceph daemons of a host by type. A daemon without an ID has the name of its host.
func cephDaemons(h Host) map[string][]string {
	if len(h.Ceph) == 0 {
		return nil
	}
	out := map[string][]string{}
	for _, daemon := range h.Ceph {
		kind, id, _ := strings.Cut(daemon, ".")
		out[kind] = append(out[kind], cmp.Or(id, h.Name))
	}
	return out
}

func validateCeph(host int, daemons []string) error {
	for j, daemon := range daemons {
		kind, id, _ := strings.Cut(daemon, ".")
		if text := oneOf(kind, "mon", "mgr", "mds", "osd"); text != "" {
			return bad(text, "hosts", host, "ceph", j)
		}
		if _, err := strconv.Atoi(id); err != nil && kind == "osd" {
			return bad(fmt.Sprintf("%q is not an OSD with its number, for example osd.0", daemon), "hosts", host, "ceph", j)
		}
	}
	return nil
}

func (s *Scenario) validateJobs() error {
	for i, job := range s.BackupJobs {
		switch {
		case job.ID == "":
			return bad("a backup job needs an id", "backupJobs", i, "id")
		case job.Host != "" && !s.hasHost(job.Host):
			return bad(fmt.Sprintf("there is no host %q", job.Host), "backupJobs", i, "host")
		case job.Pool != "" && !slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.ID == job.Pool }):
			return bad(fmt.Sprintf("there is no pool %q", job.Pool), "backupJobs", i, "pool")
		}
	}
	for i, job := range s.ReplicationJobs {
		switch {
		case !slices.ContainsFunc(s.Guests, func(g Guest) bool { return g.VMID == job.VMID }):
			return bad(fmt.Sprintf("there is no guest %d", job.VMID), "replicationJobs", i, "vmid")
		case !s.hasHost(job.Target):
			return bad(fmt.Sprintf("there is no host %q", job.Target), "replicationJobs", i, "target")
		}
	}
	return nil
}

// populateJobs creates the jobs of the scenario and sets how hosts vote.
func (s *Simulator) populateJobs() {
	k := s.engine.Kernel
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if s.scenario.Votes != nil {
		k.Votes = &kernel.Votes{QDevice: s.scenario.Votes.QDevice}
	}
	for _, job := range s.scenario.BackupJobs {
		k.BackupJobs = append(k.BackupJobs, job.row())
	}
	for i, job := range s.scenario.ReplicationJobs {
		row := map[string]any{
			"id": fmt.Sprintf("%d-%d", job.VMID, i), "guest": job.VMID, "jobnum": i, "type": "local", "target": job.Target, "schedule": "*/15",
		}
		if job.Disabled {
			row["disable"] = 1
		}
		k.ReplicationJobs = append(k.ReplicationJobs, row)
	}
}

// row returns the job as the API lists it.
func (j BackupJob) row() map[string]any {
	row := map[string]any{
		"id": j.ID, "type": "vzdump", "schedule": j.Schedule, "enabled": 1, "mode": "snapshot", "storage": "local",
		"next-run": time.Now().Add(time.Duration(j.NextRun)).Unix(),
	}
	if j.Disabled {
		row["enabled"] = 0
		delete(row, "next-run")
	}
	if j.Host != "" {
		row["node"] = j.Host
	}
	if len(j.Exclude) > 0 {
		row["exclude"] = vmidList(j.Exclude)
	}
	switch {
	case j.Pool != "":
		row["pool"] = j.Pool
	case len(j.VMs) > 0:
		row["vmid"] = vmidList(j.VMs)
	default:
		row["all"] = 1
	}
	return row
}

func vmidList(vmids []int) string {
	texts := make([]string, 0, len(vmids))
	for _, vmid := range vmids {
		texts = append(texts, strconv.Itoa(vmid))
	}
	return strings.Join(texts, ",")
}
