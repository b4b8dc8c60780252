// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Outages injects random outages into a simulated Cluster and ends them.
type Outages struct {
	T    testing.TB
	Sim  *pvesim.Simulator
	Rand *rand.Rand
	// Hosts are the hosts of the Cluster.
	Hosts []string
	// AddFault adds a fault to the Cluster.
	AddFault func(pvesim.Fault)
	// Done counts the disturbances by name.
	Done map[string]int

	// down is the host without power, if any.
	down                  string
	noQuorum, partitioned bool
	hanging               map[string]bool
	inactive              map[storageOf]bool
}

// storageOf is a storage on a host.
type storageOf struct{ host, storage string }

// Storages of the disks and of the boot drives of our VMs.
const (
	diskStorage  = "local-lvm"
	driveStorage = "local"
)

// NewOutages completes Outages whose other fields are set.
func NewOutages(o Outages) *Outages {
	o.Done, o.hanging, o.inactive = map[string]int{}, map[string]bool{}, map[storageOf]bool{}
	return &o
}

// Pick returns a random element of a list.
func Pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// Disturb runs one of the disturbances.
func (o *Outages) Disturb(disturbances map[string]func()) {
	name := Pick(o.Rand, slices.Sorted(maps.Keys(disturbances)))
	disturbances[name]()
	o.Done[name]++
}

// DisturbWithOutages runs one of the disturbances, or begins or ends an outage.
func (o *Outages) DisturbWithOutages(disturbances map[string]func()) {
	all := map[string]func(){
		"hosts toggled": o.ToggleHost, "quorum toggled": o.toggleQuorum, "partitions toggled": o.togglePartition,
		"hangs toggled": o.toggleHang, "storages toggled": o.ToggleStorage, "load": o.addLoad,
	}
	maps.Copy(all, disturbances)
	o.Disturb(all)
}

// ToggleHost cuts the power of a host or restores it. One at a time: two would be the end of the quorum.
func (o *Outages) ToggleHost() {
	if host := o.down; host != "" {
		o.down = ""
		testenv.Must(o.T, o.Sim.HostUp(host))
		return
	}
	o.down = Pick(o.Rand, o.Hosts)
	testenv.Must(o.T, o.Sim.HostDown(o.down, Pick(o.Rand, []string{"refused", "noroute", "timeout"})))
}

func (o *Outages) toggleQuorum() {
	o.noQuorum = !o.noQuorum
	o.Sim.SetQuorum(!o.noQuorum)
}

// togglePartition separates one host from the others, or ends that. Its API then has no quorum.
func (o *Outages) togglePartition() {
	if o.partitioned = !o.partitioned; o.partitioned {
		testenv.Must(o.T, o.Sim.Partition(Pick(o.Rand, o.Hosts)))
	} else {
		o.Sim.Heal()
	}
}

// toggleHang makes the API of a host hang after the TLS handshake, or ends that.
func (o *Outages) toggleHang() {
	host := Pick(o.Rand, o.Hosts)
	o.hanging[host] = !o.hanging[host]
	testenv.Must(o.T, o.Sim.SetHang(host, o.hanging[host]))
}

// ToggleStorage makes a storage of a host inactive, as a late one after the power-on, or ends
// that.
func (o *Outages) ToggleStorage() {
	s := storageOf{Pick(o.Rand, o.Hosts), Pick(o.Rand, []string{diskStorage, driveStorage})}
	o.inactive[s] = !o.inactive[s]
	testenv.Must(o.T, o.Sim.SetStorageActive(s.host, s.storage, !o.inactive[s]))
}

// addLoad replaces all faults with what overloaded hosts do.
func (o *Outages) addLoad() {
	o.Sim.ClearFaults()
	for _, f := range pvesim.LoadFaults() {
		o.AddFault(f)
	}
}

// CanLaunch reports whether VMs can be created on a host.
func (o *Outages) CanLaunch(host string) bool {
	return !o.noQuorum && o.down != host && !o.inactive[storageOf{host, diskStorage}]
}

// EndOutages ends all faults and outages.
func (o *Outages) EndOutages() {
	o.Sim.ClearFaults()
	o.Sim.SetQuorum(true)
	o.Sim.Heal()
	for host := range o.hanging {
		testenv.Must(o.T, o.Sim.SetHang(host, false))
	}
	for s := range o.inactive {
		testenv.Must(o.T, o.Sim.SetStorageActive(s.host, s.storage, true))
	}
	if o.down != "" {
		testenv.Must(o.T, o.Sim.HostUp(o.down))
	}
	o.down, o.noQuorum, o.partitioned = "", false, false
	clear(o.hanging)
	clear(o.inactive)
}
