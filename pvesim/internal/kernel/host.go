// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// SetMaintenance puts a host into maintenance, as "ha-manager crm-command node-maintenance" does, or ends that.
func (k *Kernel) SetMaintenance(name string, on bool) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	h := k.Host(name)
	if h == nil {
		return api.Failf("no such cluster node '%s'", name)
	}
	h.Maintenance = on
	return nil
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
	Report   *Report
	BootedAt time.Time
	workers  chan struct{} // the free worker processes of its API daemon
}

// Report is what pvestatd reports about a host.
type Report struct {
	Host     api.Row
	Guests   map[int]GuestFigures
	Storages map[string]int64 // bytes in use
}

// Bridge is a network bridge of a host.
type Bridge struct {
	Name, CIDR, Gateway, Ports string
	VLANAware                  bool
}

// CPUs is the number of hardware threads of the host.
func (h *Host) CPUs() int { return h.Sockets * h.Cores * max(h.Threads, 1) }

// AddHost adds a host to the cluster.
func (k *Kernel) AddHost(h *Host) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if h.IP == "" {
		h.IP = fmt.Sprintf("10.97.%d.%d", len(k.Hosts)/250, len(k.Hosts)%250+2)
	}
	h.workers = make(chan struct{}, daemonWorkers)
	h.BootedAt = time.Now().Add(-time.Hour)
	k.Hosts = append(k.Hosts, h)
	k.hostsByName[h.Name] = h
}

func (k *Kernel) Host(name string) *Host { return k.hostsByName[name] }

// Serving is the host that answers requests: the first one that is up.
func (k *Kernel) Serving() *Host {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	for _, h := range k.Hosts {
		if h.Online {
			return h
		}
	}
	return nil
}

// GuestFigures are what pvestatd last reported about a guest. They are a struct and not a row because a cluster can have
// thousands of guests, reported every few real milliseconds.
type GuestFigures struct {
	Name, Status               string
	Template                   bool
	Uptime                     int64
	MaxCPU                     int
	CPU                        float64
	MaxMemory, Memory, MaxDisk int64
}

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
