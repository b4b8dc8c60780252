// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

var allInterfaceFields = admissionCases{"all_interface_fields": {spec: `
metadataOptions: {type: cdrom, templatesRef: {name: ubuntu, namespace: kube-system}}
network:
  interfaces:
  - {name: net0, vlan: 0, rateLimit: "100", firewall: true, metric: 100}
  - {name: net1, bridge: vmbr1, model: virtio, vlan: 7, trunks: ["8", 10-19], rateLimit: "12.5", mtu: 9000, queues: 4}
  - name: net2
    firewall: false
    defaultRoute: false
    routes: [{to: 10.0.0.0/8, via: 10.1.0.1, metric: 50, table: 100}, {to: "2001:db8:1::/48", via: "fe80::1"}, {to: 10.2.0.0/16}]
    policyRoutes: [{from: 10.1.0.0/24, to: 10.0.0.0/8, table: 100, priority: 1000}]
    dnsServers: [10.1.0.53]
    searchDomains: [storage.example.com]`}}

// interfaceCases are NodeClasses with an interface.
var interfaceCases = admissionCases{
	"interface_mtu_with_e1000":             {`model: e1000, mtu: 9000`, "mtu and queues need the model virtio"},
	"interface_queues_with_e1000":          {`model: e1000, queues: 4`, "mtu and queues need the model virtio"},
	"interface_invalid_mtu":                {`mtu: 5`, "mtu must be 1 (the MTU of the bridge) or from 576 to 65520"},
	"interface_invalid_vlan":               {`vlan: 4095`, "spec.network.interfaces[0].vlan"},
	"interface_invalid_trunk":              {`trunks: [all]`, "spec.network.interfaces[0].trunks[0]"},
	"interface_invalid_rateLimit":          {`rateLimit: fast`, `rateLimit must be megabytes per second from 0 to 999999, like "100" or "12.5"`},
	"interface_negative_rateLimit":         {`rateLimit: "-1"`, "rateLimit must be megabytes per second"},
	"interface_unknown_model":              {`model: vga`, `supported values: "e1000"`},
	"interface_too_many_queues":            {`queues: 65`, "spec.network.interfaces[0].queues"},
	"interface_invalid_bridge":             {`bridge: "a,b=c"`, "spec.network.interfaces[0].bridge"},
	"interface_routes_without_boot_data":   {`routes: [{to: 10.0.0.0/8, via: 10.1.0.1}]`, "set metadataOptions.type to cdrom or fwcfg"},
	"interface_defaultRoute_without_it":    {`defaultRoute: false`, "set metadataOptions.type to cdrom or fwcfg"},
	"interface_route_without_prefix":       {`routes: [{to: 10.0.0.1}]`, "to must be a subnet with its prefix, like 10.0.0.0/8"},
	"interface_route_with_two_families":    {`routes: [{to: 10.0.0.0/8, via: "fe80::1"}]`, "to and via must both be IPv4 or both be IPv6"},
	"interface_rule_without_subnet":        {`policyRoutes: [{table: 1, priority: 1}]`, "set from, to, or both"},
	"interface_rule_with_two_families":     {`policyRoutes: [{from: 10.0.0.0/8, to: "fd00::/8", table: 1, priority: 1}]`, "from and to must both be IPv4 or both be IPv6"},
	"interface_rule_without_priority":      {`policyRoutes: [{from: 10.0.0.0/8, table: 1}]`, "priority: Required value"},
	"interface_name_server_not_an_address": {`dnsServers: [dns.example.com]`, "dnsServers must be addresses, like 192.168.0.53 or 2001:db8::53"},
}.within("network: {interfaces: [{name: net0, ", "}]}")
