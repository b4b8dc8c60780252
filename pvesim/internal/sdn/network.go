// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sdn serves the software-defined network: zones, virtual networks and the addresses of their DHCP servers.
package sdn

import (
	"context"
	"fmt"
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/collection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Network is the software-defined network of the cluster.
type Network struct {
	k       *kernel.Kernel
	zones   *collection.Collection
	vnets   *collection.Collection
	subnets map[string]*subnet // by virtual network
}

// New returns a network without zones.
func New(k *kernel.Kernel) *Network {
	privileges := []string{"SDN.Audit", "SDN.Use", "SDN.Allocate"}
	return &Network{
		k: k, subnets: map[string]*subnet{},
		zones: collection.New(k, "zone", "sdn zone object ID", func(r *api.Request, zone api.Row) bool {
			return k.Access.HasAny(r.Who, fmt.Sprintf("/sdn/zones/%v", zone["zone"]), privileges...)
		}),
		vnets: collection.New(k, "vnet", "sdn vnet object ID", func(r *api.Request, vnet api.Row) bool {
			return k.Access.HasAny(r.Who, fmt.Sprintf("/sdn/zones/%v/%v", vnet["zone"], vnet["vnet"]), privileges...)
		}),
	}
}

// Routes returns the handlers of the network by method.
func (nw *Network) Routes() map[string]api.Handler {
	routes := map[string]api.Handler{
		"PUT /cluster/sdn":                           nw.putSDN,
		"GET /cluster/sdn/ipams":                     nw.getIPAMs,
		"GET /cluster/sdn/ipams/{ipam}/status":       nw.getIPAMStatus,
		"GET /nodes/{node}/sdn/zones":                api.EmptyList,
		"GET /nodes/{node}/sdn/zones/{zone}/content": nw.getZoneContent,
	}
	maps.Copy(routes, nw.zones.Handlers("/cluster/sdn/zones"))
	maps.Copy(routes, nw.vnets.Handlers("/cluster/sdn/vnets"))
	return routes
}

// AddZone adds an SDN zone.
func (nw *Network) AddZone(id string, fields map[string]any) { nw.zones.Add(id, fields) }

// AddVNet adds a virtual network, which VMs can use like a bridge.
func (nw *Network) AddVNet(id string, fields map[string]any) { nw.vnets.Add(id, fields) }

// Zones returns the SDN zones in order. The caller holds the mutex.
func (nw *Network) Zones() []string { return nw.zones.IDs() }

// VNetZones returns the zone of each virtual network. The caller holds the mutex.
func (nw *Network) VNetZones() map[string]string {
	zones := map[string]string{}
	for _, id := range nw.vnets.IDs() {
		zones[id] = fmt.Sprint(nw.vnets.Field(id, "zone"))
	}
	return zones
}

// HasBridge reports whether a host has a bridge or virtual network. The caller holds the mutex.
func (nw *Network) HasBridge(host, name string) bool {
	for _, b := range nw.k.Host(host).Bridges {
		if b.Name == name {
			return true
		}
	}
	return nw.vnets.Has(name)
}

// ZoneOf returns the SDN zone of a bridge. Bridges outside of SDN are in "localnetwork".
func (nw *Network) ZoneOf(bridge string) string {
	nw.k.Mu.Lock()
	defer nw.k.Mu.Unlock()
	if nw.vnets.Has(bridge) {
		return fmt.Sprint(nw.vnets.Field(bridge, "zone"))
	}
	return "localnetwork"
}

// getZoneContent always fails: the ID of the zone "localnetwork" is longer than the format allows.
func (nw *Network) getZoneContent(_ context.Context, r *api.Request) (api.Response, error) {
	return api.Response{}, api.Failf("zone '%s' does not exist", r.Params.Values["zone"])
}

// putSDN starts a task that applies pending changes. The simulator has none.
func (nw *Network) putSDN(_ context.Context, r *api.Request) (api.Response, error) {
	serving := nw.k.ServingHost()
	if serving == nil {
		return api.Response{}, api.Failf("no host is up")
	}
	r.Host = serving.Name
	return kernel.TaskResponse(nw.k.Fork(r, "reloadnetworkall", "", func(_ context.Context, t *tasks.Task) error {
		t.Logf("%s: reloading network config", serving.Name)
		return nil
	})), nil
}
