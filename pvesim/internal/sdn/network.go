// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sdn serves the software-defined network: zones, virtual networks and the addresses of their DHCP servers.
package sdn

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/collection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
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
		"GET /cluster/sdn/dns":                       api.Static([]api.Row{}),
		"GET /cluster/sdn/ipams":                     nw.getIPAMs,
		"GET /cluster/sdn/ipams/{ipam}/status":       nw.getIPAMStatus,
		"GET /nodes/{node}/sdn/zones":                api.Static([]api.Row{}),
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
	return nw.vnets.Has(name) || slices.ContainsFunc(nw.k.Host(host).Bridges, func(b kernel.Bridge) bool { return b.Name == name })
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
	nw.k.Mu.Lock()
	serving := nw.k.ServingHost(r)
	nw.k.Mu.Unlock()
	if serving == nil {
		return api.Response{}, api.Failf("no host is up")
	}
	r.Host = serving.Name
	return kernel.TaskResponse(nw.k.Fork(r, "reloadnetworkall", "", func(_ context.Context, t *tasks.Task) error {
		t.Logf("%s: reloading network config", serving.Name)
		return nil
	}))
}

// subnet is the subnet of a virtual network with the addresses that are assigned.
type subnet struct {
	prefix   netip.Prefix
	gateway  netip.Addr
	assigned map[string]netip.Addr
}

// assign assigns the lowest free address to each MAC address without one, and releases the addresses of other MAC
// addresses. Proxmox does so when a guest is created, changed or destroyed.
func (s *subnet) assign(macs []string) {
	present := map[string]bool{}
	for _, mac := range macs {
		present[mac] = true
	}
	used := map[netip.Addr]bool{s.gateway: true}
	for mac, addr := range s.assigned {
		if !present[mac] {
			delete(s.assigned, mac)
			continue
		}
		used[addr] = true
	}
	for _, mac := range macs {
		if _, ok := s.assigned[mac]; ok {
			continue
		}
		addr := s.prefix.Addr().Next()
		for used[addr] {
			addr = addr.Next()
		}
		if !s.prefix.Contains(addr.Next()) {
			return // broadcast address, or end of the subnet
		}
		s.assigned[mac], used[addr] = addr, true
	}
}

// AddSubnet sets the subnet of a virtual network. It ignores invalid subnets.
func (nw *Network) AddSubnet(vnet, cidr, gateway string) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return
	}
	router, _ := netip.ParseAddr(gateway)
	nw.k.Mu.Lock()
	defer nw.k.Mu.Unlock()
	nw.subnets[vnet] = &subnet{prefix: prefix.Masked(), gateway: router, assigned: map[string]netip.Addr{}}
}

// Lease returns the address that the DHCP server of a virtual network assigns to a MAC address. The result is not valid
// if there is no such server.
func (nw *Network) Lease(vnet, mac string) netip.Prefix {
	nw.k.Mu.Lock()
	defer nw.k.Mu.Unlock()
	s := nw.subnets[vnet]
	if _, managed := nw.managedZone(vnet); s == nil || !managed {
		return netip.Prefix{}
	}
	nw.assignmentRows(vnet, s, func(netip.Addr) api.Row { return api.Row{} })
	addr, ok := s.assigned[strings.ToUpper(mac)]
	if !ok {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr, s.prefix.Bits())
}

func (nw *Network) getIPAMs(_ context.Context, r *api.Request) (api.Response, error) {
	rows := []api.Row{}
	if typ, ok := r.Value("type"); (!ok || typ == "pve") && nw.k.Access.HasAny(r.Who, "/sdn/ipams/pve", "SDN.Audit", "SDN.Allocate") {
		rows = append(rows, api.Row{"ipam": "pve", "type": "pve"})
	}
	return api.Response{Data: rows}, nil
}

// getIPAMStatus lists the assigned addresses of virtual networks in zones with IPAM and DHCP.
func (nw *Network) getIPAMStatus(_ context.Context, r *api.Request) (api.Response, error) {
	if r.Params.Values["ipam"] != "pve" {
		return api.Response{}, api.Failf("Currently only PVE IPAM is supported!")
	}
	may := nw.k.Access.Viewer(r.Who)
	nw.k.Mu.Lock()
	defer nw.k.Mu.Unlock()
	rows := []api.Row{}
	for _, vnet := range slices.Sorted(maps.Keys(nw.subnets)) {
		zone, managed := nw.managedZone(vnet)
		if !managed || !may.Has("/sdn/zones/"+zone+"/"+vnet, "SDN.Audit") {
			continue
		}
		s := nw.subnets[vnet]
		base := func(ip netip.Addr) api.Row {
			return api.Row{"zone": zone, "vnet": vnet, "subnet": s.prefix.String(), "ip": ip.String()}
		}
		if s.gateway.IsValid() {
			out := base(s.gateway)
			out["gateway"] = 1
			rows = append(rows, out)
		}
		rows = append(rows, nw.assignmentRows(vnet, s, base)...)
	}
	return api.Response{Data: rows}, nil
}

// managedZone returns the zone of a virtual network, and reports whether Proxmox assigns addresses there. The caller
// holds the mutex.
func (nw *Network) managedZone(vnet string) (zone string, managed bool) {
	zone = fmt.Sprint(nw.vnets.Field(vnet, "zone"))
	return zone, nw.zones.Field(zone, "ipam") == "pve" && nw.zones.Field(zone, "dhcp") == "dnsmasq"
}

// assignmentRows returns the guests of a virtual network with their addresses. The caller holds the mutex.
func (nw *Network) assignmentRows(vnet string, s *subnet, base func(netip.Addr) api.Row) []api.Row {
	owners := map[string]*kernel.Guest{}
	var macs []string
	for _, g := range nw.k.SortedGuests() {
		for _, key := range qm.NetKeys(g.Config.Options) {
			n := qm.ParseNet(g.Config.Options[key])
			if mac := strings.ToUpper(n.MAC); mac != "" && n.Opts["bridge"] == vnet && g.Config.Options["template"] != "1" {
				macs, owners[mac] = append(macs, mac), g
			}
		}
	}
	s.assign(macs)
	var rows []api.Row
	for _, mac := range macs {
		addr, ok := s.assigned[mac]
		if !ok {
			continue
		}
		out := base(addr)
		out["mac"], out["vmid"], out["hostname"] = mac, strconv.Itoa(owners[mac].VMID), owners[mac].Config.Options["name"]
		rows = append(rows, out)
	}
	return rows
}
