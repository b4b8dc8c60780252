// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// findRules returns the rules that a request addresses.
func (rh *ruleHandlers) findRules(r *api.Request) (*[]map[string]string, error) {
	name, isGroup := r.Value("group")
	if !isGroup {
		return &rh.file(scope(r)).rules, nil
	}
	g := rh.groups[name]
	if g == nil {
		return nil, api.Failf("no such security group '%s'", name)
	}
	return &g.rules, nil
}

func (rh *ruleHandlers) getRules(r *api.Request) (any, error) {
	rules, err := rh.findRules(r)
	if err != nil {
		return nil, err
	}
	rows := []api.Row{}
	for i, rule := range *rules {
		out := newRow(rule)
		out["pos"], out["digest"] = i, api.Digest(*rules)
		rows = append(rows, out)
	}
	return rows, nil
}

// findRule returns the rules that a request addresses and the position of one of them. It fails if the digest does not
// match.
func (rh *ruleHandlers) findRule(r *api.Request) (*[]map[string]string, int, error) {
	rules, err := rh.findRules(r)
	if err != nil {
		return nil, 0, err
	}
	pos := r.Int("pos", -1)
	if pos < 0 || pos >= len(*rules) {
		return nil, 0, api.Failf("no rule at position %d", pos)
	}
	if d, ok := r.Value("digest"); ok && d != api.Digest(*rules) {
		return nil, 0, api.Failf("detected modified configuration - file changed by other user? Try again.")
	}
	return rules, pos, nil
}

func (rh *ruleHandlers) getRule(r *api.Request) (any, error) {
	rules, pos, err := rh.findRule(r)
	if err != nil {
		return nil, err
	}
	out := newRow((*rules)[pos])
	// The position is a number in lists and a string here.
	out["pos"], out["digest"] = strconv.Itoa(pos), api.Digest(*rules)
	return out, nil
}

// completeRule checks fields that depend on each other and sets the address family.
func (rh *ruleHandlers) completeRule(rule map[string]string) error {
	for _, port := range []string{"dport", "sport"} {
		if rule[port] != "" && rule["proto"] == "" && rule["macro"] == "" {
			return api.BadParam("proto", "missing property - '%s' requires this property", port)
		}
	}
	for _, side := range []string{"source", "dest"} {
		if p, err := netip.ParsePrefix(rule[side]); err == nil {
			rule["ipversion"] = ipVersion(p.Addr())
		} else if a, err := netip.ParseAddr(rule[side]); err == nil {
			rule["ipversion"] = ipVersion(a)
		}
	}
	if _, ok := rule["enable"]; !ok {
		rule["enable"] = "0"
	}
	return nil
}

func ipVersion(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}

// postRule inserts a rule at the front. It accepts duplicates and references to groups that do not exist.
func (rh *ruleHandlers) postRule(r *api.Request) error {
	rules, err := rh.findRules(r)
	if err != nil {
		return err
	}
	rule := params(r)
	if err := rh.completeRule(rule); err != nil {
		return err
	}
	pos := min(max(r.Int("pos", 0), 0), len(*rules))
	*rules = slices.Insert(*rules, pos, rule)
	return nil
}

func (rh *ruleHandlers) putRule(r *api.Request) error {
	rules, pos, err := rh.findRule(r)
	if err != nil {
		return err
	}
	rule := (*rules)[pos]
	if to := r.Int("moveto", -1); to >= 0 {
		*rules = slices.Delete(*rules, pos, pos+1)
		*rules = slices.Insert(*rules, min(to, len(*rules)), rule)
		return nil
	}
	maps.Copy(rule, params(r))
	api.DeleteListed(r, rule)
	return rh.completeRule(rule)
}

func (rh *ruleHandlers) deleteRule(r *api.Request) error {
	rules, pos, err := rh.findRule(r)
	if err != nil {
		return err
	}
	*rules = slices.Delete(*rules, pos, pos+1)
	return nil
}

func (gh *groupHandlers) getGroups(*api.Request) (any, error) {
	rows := []api.Row{}
	for _, name := range slices.Sorted(maps.Keys(gh.groups)) {
		out := api.Row{"group": name, "digest": api.Digest(slices.Sorted(maps.Keys(gh.groups)))}
		api.SetNonEmpty(out, "comment", gh.groups[name].comment)
		rows = append(rows, out)
	}
	return rows, nil
}

func (gh *groupHandlers) postGroup(r *api.Request) error {
	name := r.Params.Values["group"]
	if gh.groups[name] != nil && r.Params.Values["rename"] == "" {
		return api.BadParam("group", "Security group '%s' already exists", name)
	}
	group := &securityGroup{comment: r.Params.Values["comment"]}
	if old, ok := r.Value("rename"); ok {
		if gh.groups[old] == nil {
			return api.BadParam("rename", "Security group '%s' does not exist", old)
		}
		group.rules = gh.groups[old].rules
		delete(gh.groups, old)
	}
	gh.groups[name] = group
	return nil
}

func (gh *groupHandlers) deleteGroup(r *api.Request) error {
	name := r.Params.Values["group"]
	g := gh.groups[name]
	if g == nil {
		return nil
	}
	if len(g.rules) > 0 {
		return api.Failf("Security group '%s' is not empty", name)
	}
	delete(gh.groups, name)
	return nil
}
