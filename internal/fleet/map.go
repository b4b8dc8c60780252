// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet combines the inventory of Proxmox with the objects of Kubernetes into one
// Map: the capacity of each Host and what uses it, the VMs with their price and the pods on
// them, the pending pods with the reason why they wait, and what Karpenter is doing. The
// terminal view, the web page and the demo show this Map.
//
// Build is a pure function of its Input. ReadObjects lists the objects of Kubernetes.
package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// HoursPerMonth converts a price per hour into a price per month.
const HoursPerMonth = 730

// Input is what a Map is built from.
type Input struct {
	View    inventory.View
	Objects Objects
	// KubeCluster is the UID of the Kubernetes cluster, which identifies its VMs.
	KubeCluster string
	Pricing     instancetype.Pricing
	Now         time.Time
}

// Map is the state of all Hosts and VMs at one moment.
type Map struct {
	Taken   time.Time `json:"taken"`
	Regions []Region  `json:"regions"`
	// Hosts sorted by region and name.
	Hosts []Host `json:"hosts"`
	// VMs sorted by region, Host and VMID.
	VMs       []VM       `json:"vms"`
	NodePools []NodePool `json:"nodePools"`
	// Pending are the pods without a Node, the oldest first.
	Pending   []Pod      `json:"pendingPods"`
	Templates []Template `json:"templates"`
	// Problems are NodeClasses and NodePools that are not ready.
	Problems []string `json:"problems"`
	// Activity is what Karpenter is doing now.
	Activity []string `json:"activity"`
	// Events are the recent events of Karpenter, the newest first.
	Events []Event `json:"events"`
}

// Region is a Proxmox Cluster.
type Region struct {
	Name string `json:"name"`
	// Version of Proxmox VE; empty until the Cluster was read.
	Version string `json:"version,omitempty"`
	// Problem is why the last poll failed; empty if it did not.
	Problem string `json:"problem,omitempty"`
}

// Host is the capacity of a Host and what uses it.
type Host struct {
	Region string `json:"region"`
	Name   string `json:"host"`
	// OutOfService is Offline, InMaintenance or Excluded; empty if the Host is in service.
	OutOfService string `json:"outOfService,omitempty"`
	// Sleep is ShuttingDown, Asleep, Waking or WakeFailed if the Host was shut down to save
	// energy; empty if it was not.
	Sleep string `json:"sleep,omitempty"`
	// Unusable is why the Host accepts no new VMs; empty if it accepts them.
	Unusable string `json:"unusable,omitempty"`
	CPUs     Usage  `json:"cpus"`
	// Memory in bytes.
	Memory   Usage     `json:"memoryBytes"`
	Storages []Storage `json:"storages,omitempty"`
	// Cells of a Host with more than one NUMA cell.
	Cells []Cell `json:"numaCells,omitempty"`
	// Guests is the number of other guests that run on the Host.
	Guests int `json:"otherGuests"`
	// Energy is zero if the Host is offline or its settings contain no watts.
	Energy declared.Energy `json:"energy,omitzero"`
	// Saved is the Energy without load of a Host that is off to save energy.
	Saved declared.Energy `json:"saved,omitzero"`
}

// SleepText describes a Host that was shut down to save energy and is in service; empty if it
// was not.
func (h Host) SleepText() string {
	return map[string]string{"ShuttingDown": "going down", "Asleep": "asleep", "Waking": "waking"}[h.Sleep]
}

// Usage is what uses a resource. Reserved is the part of VMs that Proxmox does not show
// yet. The sum exceeds Total if other users filled the Host beyond our settings.
type Usage struct {
	Total    int64 `json:"total"`
	VMs      int64 `json:"vms"`
	Guests   int64 `json:"otherGuests"`
	Reserved int64 `json:"reserved"`
}

// Used returns the sum of all uses.
func (u Usage) Used() int64 { return u.VMs + u.Guests + u.Reserved }

// Storage is a storage for disks. Proxmox does not report which guest uses how much of it.
type Storage struct {
	Name       string `json:"name"`
	Shared     bool   `json:"shared,omitempty"`
	TotalBytes int64  `json:"totalBytes"`
	UsedBytes  int64  `json:"usedBytes"`
	// ReservedBytes is what VMs in launch are expected to use.
	ReservedBytes int64 `json:"reservedBytes"`
	FreeBytes     int64 `json:"freeBytes"`
	// VMBytes is the size of the disks of our VMs, which may exceed UsedBytes on a storage with
	// thin provisioning.
	VMBytes int64 `json:"vmBytes"`
}

// Cell is a NUMA cell. Usage by VMs is that of VMs bound to it; all other guests count in
// each cell in proportion to its size.
type Cell struct {
	ID     int   `json:"id"`
	CPUs   Usage `json:"cpus"`
	Memory Usage `json:"memoryBytes"`
}

// NodePool is the sum of a NodePool's VMs.
type NodePool struct {
	Name         string  `json:"name"`
	VMs          int     `json:"vms"`
	Pods         int     `json:"pods"`
	CPUs         int     `json:"cpus"`
	MemoryBytes  int64   `json:"memoryBytes"`
	PricePerHour float64 `json:"pricePerHour"`
	// Energy is the part of the Hosts' Energy that its VMs use.
	Energy declared.Energy `json:"energy,omitzero"`
}

// Template is a template object with the Hosts on which VMs can be cloned from it.
type Template struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Zones in the format <region>/<host>/<vmid>.
	Zones []string `json:"zones,omitempty"`
	// Problem is why it is not ready or not up to date; empty if it is.
	Problem string `json:"problem,omitempty"`
}

// Build returns the Map of its input. Only one process makes Reservations, and others show the Map
// too: what the View lacks are those of the NodeClaims.
func Build(in Input) Map {
	reservations := slices.Collect(maps.Values(in.View.Reservations))
	for _, r := range Reservations(in.View, in.KubeCluster, in.Objects.Claims) {
		if _, known := in.View.Reservations[r.ClaimUID]; !known {
			reservations = append(reservations, r)
		}
	}
	in.View = in.View.WithReservations(reservations...)
	m := Map{Taken: in.Now, Regions: regions(in.View), Templates: templates(in.Objects), Events: recentEvents(in.Objects.Events)}
	m.VMs = newVMs(in)
	m.Hosts = newHosts(in, m.VMs)
	m.NodePools = nodePools(in, m.VMs)
	m.Pending = pendingPods(in)
	m.Problems = problems(in.Objects)
	m.Activity = activity(in.Now, m.VMs)
	return m
}

// PricePerHour returns the price of all VMs.
func (m Map) PricePerHour() float64 {
	total := 0.0
	for _, vm := range m.VMs {
		total += vm.PricePerHour
	}
	return total
}

// Energy returns the sum of all Hosts, and what is saved because Hosts are off.
func (m Map) Energy() (used, saved declared.Energy) {
	for _, host := range m.Hosts {
		used, saved = used.Plus(host.Energy), saved.Plus(host.Saved)
	}
	return used, saved
}

// VMsOn returns the VMs of a Host.
func (m Map) VMsOn(region, host string) []VM {
	return slices.DeleteFunc(slices.Clone(m.VMs), func(vm VM) bool { return vm.Region != region || vm.Host != host })
}

// OfNodePool returns a Map with only the VMs of a NodePool. Hosts and pending pods stay,
// because they belong to no NodePool. An empty name returns the Map itself.
func (m Map) OfNodePool(name string) Map {
	if name == "" {
		return m
	}
	m.VMs = slices.DeleteFunc(slices.Clone(m.VMs), func(vm VM) bool { return vm.NodePool != name })
	return m
}

// Order is an order of VMs and Hosts.
type Order string

// Orders.
const (
	ByName   Order = "name"
	ByCPUs   Order = "CPUs"
	ByMemory Order = "memory"
	ByPrice  Order = "price"
	ByPods   Order = "pods"
)

// Orders lists all orders.
func Orders() []Order { return []Order{ByName, ByCPUs, ByMemory, ByPrice, ByPods} }

// Sorted returns a Map in an order: the largest VMs first, and the Hosts with the most of it.
func (m Map) Sorted(by Order) Map {
	if by == ByName {
		return m
	}
	sums := map[[2]string]float64{}
	for _, vm := range m.VMs {
		sums[[2]string{vm.Region, vm.Host}] += vm.size(by)
	}
	m.VMs, m.Hosts = slices.Clone(m.VMs), slices.Clone(m.Hosts)
	slices.SortStableFunc(m.VMs, func(a, b VM) int { return cmp.Compare(b.size(by), a.size(by)) })
	slices.SortStableFunc(m.Hosts, func(a, b Host) int {
		return cmp.Compare(sums[[2]string{b.Region, b.Name}], sums[[2]string{a.Region, a.Name}])
	})
	return m
}
