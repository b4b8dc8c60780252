// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Facts are what decisions depend on and the inventory does not contain.
type Facts struct {
	Votes        proxmox.Votes
	Ceph         map[string][]string // by Host
	HA           map[string][]string // by Host
	Backups      []proxmox.BackupJob
	Replications []proxmox.ReplicationJob
	Tasks        []proxmox.TaskStatus
	// Exports are the network storages by the Host that serves them.
	Exports map[string][]string
	// URLHosts are the names or addresses in the URLs of the cloud config.
	URLHosts []string
	// Addresses by Host. Hosts that are off have none, unless the caller adds it.
	Addresses map[string]string
	// WakeAddresses by Host.
	WakeAddresses map[string]string
	// Unknown describes what could not be read. It keeps all Hosts awake.
	Unknown []string
	// UnknownOf is the same for single Hosts.
	UnknownOf map[string][]string
}

// ReadFacts reads the Facts of a Cluster: nine calls, and one or two for each of the given
// Hosts, which are online. It does not fail: what it cannot read is in Unknown.
func ReadFacts(ctx context.Context, client proxmox.PowerClient, version proxmox.Version, hosts []string) Facts {
	f := Facts{URLHosts: client.URLHosts(), WakeAddresses: map[string]string{}, UnknownOf: map[string][]string{}}
	var err error
	f.Votes, err = client.Votes(ctx)
	f.note(err)
	f.HA, err = client.HAPreferences(ctx, version)
	f.note(err)
	f.Backups, err = client.BackupJobs(ctx)
	f.note(err)
	f.Replications, err = client.ReplicationJobs(ctx)
	f.note(err)
	f.Tasks, err = client.AllRunningTasks(ctx)
	f.note(err)
	f.readExports(ctx, client)
	f.readCeph(ctx, client, hosts)
	for _, host := range hosts {
		mac, err := client.WakeAddress(ctx, host)
		if err != nil {
			f.UnknownOf[host] = append(f.UnknownOf[host], err.Error())
			continue
		}
		f.WakeAddresses[host] = mac
	}
	return f
}

func (f *Facts) note(err error) {
	if err != nil {
		f.Unknown = append(f.Unknown, err.Error())
	}
}

// readCeph reads the Ceph daemons. If Ceph is not set up on the Host that responds, each Host
// is asked whether it is.
func (f *Facts) readCeph(ctx context.Context, client proxmox.PowerClient, hosts []string) {
	var err error
	f.Ceph, err = client.CephDaemons(ctx)
	if !errors.Is(err, proxmox.ErrNotFound) {
		f.note(err)
		return
	}
	f.Ceph = map[string][]string{}
	for _, host := range hosts {
		switch has, err := client.HasCeph(ctx, host); {
		case err != nil:
			f.UnknownOf[host] = append(f.UnknownOf[host], err.Error())
		case has:
			f.Ceph[host] = []string{"Ceph is set up"}
		}
	}
}

// readExports finds the network storages whose server is a Host, by address or name.
func (f *Facts) readExports(ctx context.Context, client proxmox.PowerClient) {
	servers, err := client.StorageServers(ctx)
	f.note(err)
	f.Addresses, err = client.HostAddresses(ctx)
	f.note(err)
	f.Exports = map[string][]string{}
	for storage, server := range servers {
		for host, address := range f.Addresses {
			if server == address || isNameOf(server, host) {
				f.Exports[host] = append(f.Exports[host], storage)
			}
		}
	}
	for _, storages := range f.Exports {
		slices.Sort(storages)
	}
}

// endpoints returns the Host of each URL; empty if it is that of no Host.
func (f *Facts) endpoints(snapshot *observed.Snapshot) []string {
	var out []string
	for _, server := range f.URLHosts {
		found := ""
		for host := range snapshot.Hosts {
			if server == f.Addresses[host] || isNameOf(server, host) {
				found = host
			}
		}
		out = append(out, found)
	}
	return out
}

// isNameOf reports whether a name is that of a Host, with or without a domain.
func isNameOf(name, host string) bool {
	label, _, _ := strings.Cut(name, ".")
	return strings.EqualFold(name, host) || strings.EqualFold(label, host)
}

// migrations are the types of tasks that move a guest to another Host.
var migrations = []string{"qmigrate", "vzmigrate", "hamigrate"}

// tasksOn returns the running tasks of a Host, and the migrations from other Hosts: each may
// be the target.
func (f *Facts) tasksOn(host string) []string {
	var out []string
	for _, task := range f.Tasks {
		if task.UPID.Host() == host || slices.Contains(migrations, task.Type) {
			out = append(out, fmt.Sprintf("%s %s", task.Type, task.ID))
		}
	}
	return out
}
