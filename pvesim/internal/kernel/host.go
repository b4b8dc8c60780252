// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

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
	workers  chan struct{} // slots for the busy workers of its API daemon
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
	h.BootedAt = time.Now().Add(-time.Hour)
	k.Hosts = append(k.Hosts, h)
	k.hostsByName[h.Name] = h
}

// Host returns a host by name, or nil. The caller holds the mutex.
func (k *Kernel) Host(name string) *Host { return k.hostsByName[name] }

// ServingHost returns the host that serves requests: the first one that is up, or nil.
func (k *Kernel) ServingHost() *Host {
	k.Mu.Lock()
	defer k.Mu.Unlock()
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
	return nil
}
