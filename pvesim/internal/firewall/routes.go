// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// Handlers by kind of object.
type (
	ruleHandlers   struct{ *Firewall }
	optionHandlers struct{ *Firewall }
	groupHandlers  struct{ *Firewall }
	ipsetHandlers  struct{ *Firewall }
	aliasHandlers  struct{ *Firewall }
)

// Routes returns the handlers of the firewall by method.
func (fw *Firewall) Routes() map[string]api.Handler {
	const groups = " /cluster/firewall/groups"
	sgs, rules, options := groupHandlers{fw}, ruleHandlers{fw}, optionHandlers{fw}
	ipsets, aliases := ipsetHandlers{fw}, aliasHandlers{fw}
	out := map[string]api.Handler{
		"GET /cluster/firewall":              api.Index("name", "rules", "options", "groups", "ipset", "aliases"),
		"GET" + groups:                       sgs.getGroups,
		"POST" + groups:                      sgs.postGroup,
		"GET" + groups + "/{group}":          rules.getRules,
		"POST" + groups + "/{group}":         rules.postRule,
		"DELETE" + groups + "/{group}":       sgs.deleteGroup,
		"GET" + groups + "/{group}/{pos}":    rules.getRule,
		"PUT" + groups + "/{group}/{pos}":    rules.putRule,
		"DELETE" + groups + "/{group}/{pos}": rules.deleteRule,
		"GET /nodes/{node}/firewall/options": options.getOptions,
		"PUT /nodes/{node}/firewall/options": options.putOptions,
		"GET /nodes/{node}/firewall/rules":   rules.getRules,
	}
	for _, at := range []string{" /cluster/firewall", " /nodes/{node}/qemu/{vmid}/firewall"} {
		maps.Copy(out, map[string]api.Handler{
			"GET" + at + "/options":                options.getOptions,
			"PUT" + at + "/options":                options.putOptions,
			"GET" + at + "/rules":                  rules.getRules,
			"POST" + at + "/rules":                 rules.postRule,
			"GET" + at + "/rules/{pos}":            rules.getRule,
			"PUT" + at + "/rules/{pos}":            rules.putRule,
			"DELETE" + at + "/rules/{pos}":         rules.deleteRule,
			"GET" + at + "/ipset":                  ipsets.getIPSets,
			"POST" + at + "/ipset":                 ipsets.postIPSet,
			"GET" + at + "/ipset/{name}":           ipsets.getIPSet,
			"POST" + at + "/ipset/{name}":          ipsets.postIPSetEntry,
			"DELETE" + at + "/ipset/{name}":        ipsets.deleteIPSet,
			"GET" + at + "/ipset/{name}/{cidr}":    ipsets.getIPSetEntry,
			"PUT" + at + "/ipset/{name}/{cidr}":    ipsets.putIPSetEntry,
			"DELETE" + at + "/ipset/{name}/{cidr}": ipsets.deleteIPSetEntry,
			"GET" + at + "/aliases":                aliases.getAliases,
			"POST" + at + "/aliases":               aliases.postAlias,
			"GET" + at + "/aliases/{name}":         aliases.getAlias,
			"PUT" + at + "/aliases/{name}":         aliases.putAlias,
			"DELETE" + at + "/aliases/{name}":      aliases.deleteAlias,
		})
	}
	return out
}
