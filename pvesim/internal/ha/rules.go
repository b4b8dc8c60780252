// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ha

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
)

// ruleOptions are the options of rules by type, and whether they are required.
var ruleOptions = map[string]map[string]bool{
	"node-affinity":     {"nodes": true, "strict": false},
	"resource-affinity": {"affinity": true},
}

// checkRule checks a rule that is created or changed. The caller holds the mutex.
func (m *Manager) checkRule(rule api.Row) error {
	typ, _ := rule["type"].(string)
	if err := checkRuleOptions(typ, rule); err != nil {
		return err
	}
	resources := listOf(rule["resources"])
	var unmanaged, unknown []string
	for _, id := range resources {
		if m.resources[id] == nil {
			unmanaged = append(unmanaged, id)
		}
	}
	for _, entry := range listOf(rule["nodes"]) {
		if host, _, _ := strings.Cut(entry, ":"); m.k.Host(host) == nil {
			unknown = append(unknown, host)
		}
	}
	switch {
	case len(unmanaged) > 0:
		slices.Sort(unmanaged)
		return api.Failf("cannot use unmanaged resource(s) %s.", strings.Join(unmanaged, ", "))
	case len(unknown) > 0:
		return api.Failf("cannot use non-existant node(s) %s.", strings.Join(unknown, ", ")) //nolint:misspell // the spelling of Proxmox
	case typ == "resource-affinity" && len(resources) < 2:
		return invalidRule(rule, "rule is ineffective as there are less than two resources")
	case rule["affinity"] == "negative" && len(resources) > len(m.k.Hosts):
		return invalidRule(rule, "rule defines more resources than available nodes")
	}
	return nil
}

// checkRuleOptions checks whether a rule has the options of its type and no others.
func checkRuleOptions(typ string, rule api.Row) error {
	for other, options := range ruleOptions {
		for option, required := range options {
			_, has := rule[option]
			switch {
			case has && other != typ:
				return api.Failf("unexpected property '%s'", option)
			case !has && other == typ && required:
				return api.Failf("missing value for required option '%s'", option)
			}
		}
	}
	return nil
}

func invalidRule(rule api.Row, why string) error {
	return &api.Error{Status: http.StatusBadRequest, Message: fmt.Sprintf("Rule '%s' is invalid.", rule["rule"]), Errors: map[string]string{"resources": why}}
}

// listOf returns the elements of a list in an object.
func listOf(value any) []string {
	list, _ := value.(string)
	return schema.SplitList(list)
}

// ruleResources returns the resources of a rule. The caller holds the mutex.
func (m *Manager) ruleResources(name string) []string {
	return listOf(m.rules.Field(name, "resources"))
}

// purgeRules removes a resource from all rules, and deletes rules without resources. The caller holds the mutex.
func (m *Manager) purgeRules(id string) {
	for _, name := range m.rules.IDs() {
		resources := m.ruleResources(name)
		if !slices.Contains(resources, id) {
			continue
		}
		if resources = slices.DeleteFunc(resources, func(other string) bool { return other == id }); len(resources) == 0 {
			m.rules.Delete(name)
			continue
		}
		m.rules.SetField(name, "resources", strings.Join(resources, ","))
	}
}

// CheckMove returns an error if a negative resource affinity rule separates a VM in HA from one on a host.
func (m *Manager) CheckMove(vmid int, host string) error {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	id := resourceID(vmid)
	for _, name := range m.rules.IDs() {
		resources := m.ruleResources(name)
		if m.rules.Field(name, "affinity") != "negative" || !slices.Contains(resources, id) || m.resources[id] == nil || fmt.Sprint(m.rules.Field(name, "disable")) == "1" {
			continue
		}
		for _, other := range resources {
			number, _ := strconv.Atoi(strings.TrimPrefix(other, "vm:"))
			if g := m.k.Guests[number]; other != id && g != nil && g.Host == host {
				return api.Failf("cannot migrate resource '%s' to node '%s': resource '%s' on target node in negative affinity", id, host, other)
			}
		}
	}
	return nil
}

// HARules returns the resources of the rules by name.
func (m *Manager) HARules() map[string][]string {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	out := map[string][]string{}
	for _, name := range m.rules.IDs() {
		out[name] = m.ruleResources(name)
	}
	return out
}

// HAResources returns the options of the VMs in HA by VMID.
func (m *Manager) HAResources() map[int]map[string]string {
	m.k.Mu.Lock()
	defer m.k.Mu.Unlock()
	out := map[int]map[string]string{}
	for id, options := range m.resources {
		if vmid, err := strconv.Atoi(strings.TrimPrefix(id, "vm:")); err == nil {
			out[vmid] = maps.Clone(options)
		}
	}
	return out
}

// AddHARule adds a rule without checks.
func (m *Manager) AddHARule(name string, options map[string]string) {
	m.rules.Add(name, api.NewRow(options))
}

// AddHAGroup adds a group. Hosts can have priorities, as in "pve1:2".
func (m *Manager) AddHAGroup(name string, hosts ...string) {
	m.groups.Add(name, api.Row{"type": "group", "nodes": strings.Join(hosts, ",")})
}
