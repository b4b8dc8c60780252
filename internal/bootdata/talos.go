// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"slices"
	"strconv"

	yamlv3 "go.yaml.in/yaml/v3"
)

// maxTalosTable is the highest number of a routing table that Talos accepts. The tables
// above have names.
const maxTalosTable = 252

// talosPriorities are the priorities of routing rules that Talos uses itself.
var talosPriorities = []string{"32500", "32501"}

// invalidTalosRouting returns the first value in documents about routes that Talos rejects,
// and why; nil if there is none.
func invalidTalosRouting(documents []*yamlv3.Node) (*yamlv3.Node, string) {
	used := slices.Clone(talosPriorities)
	for _, document := range documents {
		tables, priority := talosRouting(document)
		if priority != nil {
			if slices.Contains(used, priority.Value) {
				return priority, "Talos needs another priority for each RoutingRuleConfig, and none of 32500 and 32501; change policyRoutes[].priority"
			}
			used = append(used, priority.Value)
		}
		for _, table := range tables {
			if number, err := strconv.Atoi(table.Value); err == nil && (number < 1 || number > maxTalosTable) {
				return table, "Talos has the routing tables 1 to 252; change routes[].table and policyRoutes[].table"
			}
		}
		for _, route := range talosRoutes(document) {
			if lookup(route, "destination") == nil && lookup(route, "gateway") == nil {
				return route, "Talos needs the gateway of a default route; set routes[].via"
			}
		}
	}
	return nil, ""
}

// talosRouting returns the routing tables that a document names, and the priority of its
// routing rule; nil if there is none.
func talosRouting(document *yamlv3.Node) (tables []*yamlv3.Node, priority *yamlv3.Node) {
	for _, route := range talosRoutes(document) {
		tables = append(tables, lookup(route, "table"))
	}
	if kind := lookup(document, "kind"); kind != nil && kind.Value == "RoutingRuleConfig" {
		tables, priority = append(tables, lookup(document, "table")), lookup(document, "name")
	}
	return slices.DeleteFunc(tables, func(table *yamlv3.Node) bool { return table == nil }), priority
}

// talosRoutes returns the routes of a LinkConfig.
func talosRoutes(document *yamlv3.Node) []*yamlv3.Node {
	kind, routes := lookup(document, "kind"), lookup(document, "routes")
	if kind == nil || kind.Value != "LinkConfig" || routes == nil {
		return nil
	}
	return routes.Content
}
