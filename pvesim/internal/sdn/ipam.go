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

// subnet is what a virtual network gives addresses of, and to which MAC it gave which.
type subnet struct {
	prefix  netip.Prefix
	gateway netip.Addr
	given   map[string]netip.Addr
}

// AddSubnet gives a virtual network a subnet. What does not parse is left out.
func (nw *Network) AddSubnet(vnet, cidr, gateway string) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return
	}
	router, _ := netip.ParseAddr(gateway)
	nw.k.Mu.Lock()
	defer nw.k.Mu.Unlock()
	nw.subnets[vnet] = &subnet{prefix: prefix.Masked(), gateway: router, given: map[string]netip.Addr{}}
}

// settle gives an address to every MAC that has none, the lowest free one, and takes back those of MACs that are gone.
// Proxmox does so when a guest is made, changed or destroyed; nobody can tell the difference.
func (s *subnet) settle(macs []string) {
	wanted := map[string]bool{}
	for _, mac := range macs {
		wanted[mac] = true
	}
	used := map[netip.Addr]bool{s.gateway: true}
	for mac, addr := range s.given {
		if !wanted[mac] {
			delete(s.given, mac)
			continue
		}
		used[addr] = true
	}
	for _, mac := range macs {
		if _, ok := s.given[mac]; ok {
			continue
		}
		addr := s.prefix.Addr().Next()
		for used[addr] {
			addr = addr.Next()
		}
		if !s.prefix.Contains(addr.Next()) {
			return // the next one is the broadcast address, or the subnet's end
		}
		s.given[mac], used[addr] = addr, true
	}
}

func (nw *Network) getIPAMs(_ context.Context, r *api.Request) (api.Response, error) {
	rows := []api.Row{}
	if typ, ok := r.Value("type"); (!ok || typ == "pve") && nw.k.Access.HasAny(r.Who, "/sdn/ipams/pve", "SDN.Audit", "SDN.Allocate") {
		rows = append(rows, api.Row{"ipam": "pve", "type": "pve"})
	}
	return api.Response{Data: rows}, nil
}

// getIPAMStatus lists what was given on the virtual networks of zones with IPAM and DHCP.
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
		rows = append(rows, nw.givenOn(vnet, s, base)...)
	}
	return api.Response{Data: rows}, nil
}

// managedZone is the zone of a virtual network, and whether Proxmox gives addresses there. The caller holds the mutex.
func (nw *Network) managedZone(vnet string) (zone string, managed bool) {
	zone = fmt.Sprint(nw.vnets.Field(vnet, "zone"))
	return zone, nw.zones.Field(zone, "ipam") == "pve" && nw.zones.Field(zone, "dhcp") == "dnsmasq"
}

// Lease is what the DHCP server of a virtual network tells a network card; not valid where there is no such server.
func (nw *Network) Lease(vnet, mac string) netip.Prefix {
	nw.k.Mu.Lock()
	defer nw.k.Mu.Unlock()
	s := nw.subnets[vnet]
	if _, managed := nw.managedZone(vnet); s == nil || !managed {
		return netip.Prefix{}
	}
	nw.givenOn(vnet, s, func(netip.Addr) api.Row { return api.Row{} })
	addr, ok := s.given[strings.ToUpper(mac)]
	if !ok {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr, s.prefix.Bits())
}

// givenOn lists the guests of a virtual network with their addresses. The caller holds the mutex.
func (nw *Network) givenOn(vnet string, s *subnet, base func(netip.Addr) api.Row) []api.Row {
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
	s.settle(macs)
	var rows []api.Row
	for _, mac := range macs {
		addr, ok := s.given[mac]
		if !ok {
			continue
		}
		out := base(addr)
		out["mac"], out["vmid"], out["hostname"] = mac, strconv.Itoa(owners[mac].VMID), owners[mac].Config.Options["name"]
		rows = append(rows, out)
	}
	return rows
}
