// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// getNetwork lists the interfaces of a host. Bridges are only listed if the caller can use or audit them.
func (nh *networkHandlers) getNetwork(_ context.Context, r *api.Request) (api.Response, error) {
	nh.k.Mu.Lock()
	bridges := slices.Clone(nh.k.Host(r.Host).Bridges)
	nh.k.Mu.Unlock()
	typ := r.Params.Values["type"]
	host := nh.k.Access.HasAny(r.Who, "/nodes/"+r.Host, "Sys.Audit", "Sys.Modify")
	rows := []api.Row{}
	if typ == "" || typ == "eth" {
		rows = append(rows, api.Row{
			"iface": "eth0", "type": "eth", "active": 1, "method": "manual", "method6": "manual", "families": []string{"inet"}, "priority": 3,
		})
	}
	for i, b := range bridges {
		if typ != "" && !slices.Contains([]string{"bridge", "any_bridge", "any_local_bridge", "include_sdn"}, typ) {
			continue
		}
		if !host && !nh.k.Access.HasAny(r.Who, "/sdn/zones/localnetwork/"+b.Name, "SDN.Audit", "SDN.Use") {
			continue
		}
		out := api.Row{
			"iface": b.Name, "type": "bridge", "active": 1, "autostart": 1, "method": "manual", "method6": "manual",
			"families": []string{"inet"}, "bridge_ports": b.Ports, "bridge_stp": "off", "bridge_fd": "0", "priority": 4 + i,
		}
		if prefix, err := netip.ParsePrefix(b.CIDR); err == nil {
			out["method"], out["cidr"], out["address"], out["netmask"] = "static", b.CIDR, prefix.Addr().String(), fmt.Sprint(prefix.Bits())
		}
		if b.Gateway != "" {
			out["gateway"] = b.Gateway
		}
		if b.VLANAware {
			out["bridge_vlan_aware"] = 1
		}
		rows = append(rows, out)
	}
	if slices.Contains([]string{"vnet", "any_bridge", "include_sdn"}, typ) {
		rows = append(rows, nh.localVNets(r)...)
	}
	return api.Response{Data: rows}, nil
}

// localVNets returns the virtual networks that the caller can use or audit. Zones span all hosts.
func (nh *networkHandlers) localVNets(r *api.Request) []api.Row {
	nh.k.Mu.Lock()
	zones := nh.network.VNetZones()
	nh.k.Mu.Unlock()
	rows := []api.Row{}
	for _, id := range slices.Sorted(maps.Keys(zones)) {
		if nh.k.Access.HasAny(r.Who, "/sdn/zones/"+zones[id]+"/"+id, "SDN.Audit", "SDN.Use") {
			rows = append(rows, api.Row{"iface": id, "type": "vnet", "active": 1, "method": "manual", "method6": "manual"})
		}
	}
	return rows
}

func (nh *networkHandlers) getInterface(ctx context.Context, r *api.Request) (api.Response, error) {
	resp, err := nh.getNetwork(ctx, r)
	if err != nil {
		return resp, err
	}
	rows, _ := resp.Data.([]api.Row)
	for _, out := range rows {
		if out["iface"] == r.Params.Values["iface"] {
			return api.Response{Data: out}, nil
		}
	}
	return api.Response{}, api.BadParam("iface", "interface does not exist")
}
