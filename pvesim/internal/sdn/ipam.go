// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

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
