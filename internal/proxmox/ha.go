// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// HAClient reads and changes the resources, groups and rules of HA. Reads require Sys.Audit
// on /, changes Sys.Console.
type HAClient interface {
	// HAResources returns all guests in HA.
	HAResources(ctx context.Context) ([]HAResource, error)
	// HAResource returns a VM in HA. It returns ErrNotFound if the VM is not in HA.
	HAResource(ctx context.Context, vmid int) (HAResource, error)
	// AddHAResource adds a VM to HA. It returns ErrExists if the VM is in HA.
	AddHAResource(ctx context.Context, resource HAResource, release Version) error
	// UpdateHAResource sets all options of a VM in HA.
	UpdateHAResource(ctx context.Context, resource HAResource, release Version) error
	// RemoveHAResource removes a VM from HA, and from 9.0 on from all rules. Proxmox deletes
	// a rule with its last resource. It returns ErrNotFound if the VM is not in HA.
	RemoveHAResource(ctx context.Context, vmid int) error
	// HAGroups returns the groups. There are none from 9.0 on, where it fails.
	HAGroups(ctx context.Context) ([]HAGroup, error)
	// HARules returns the rules. It fails before 9.0.
	HARules(ctx context.Context) ([]HARule, error)
	// CreateHARule creates a rule. It returns ErrConflict if a resource is not in HA any
	// more or the rule exists.
	CreateHARule(ctx context.Context, rule HARule) error
	// UpdateHARule sets the resources of a rule. It returns ErrConflict if any rule changed
	// since its Digest was read, or if a resource is not in HA any more.
	UpdateHARule(ctx context.Context, rule HARule) error
	// DeleteHARule deletes a rule, if it exists.
	DeleteHARule(ctx context.Context, name string) error
}

type haClient struct{ *caller }

// HAResource is a guest in HA.
type HAResource struct {
	// ID is "vm:100"; see HAResourceID.
	ID    string
	State string
	// MaxRestart and MaxRelocate are 1 if Proxmox stores none.
	MaxRestart, MaxRelocate int
	Group                   string
	Comment                 string
}

// HAResourceID returns the ID of a VM in HA.
func HAResourceID(vmid int) string { return fmt.Sprintf("vm:%d", vmid) }

// HAGroup are the Hosts of a group.
type HAGroup struct {
	Name  string
	Hosts []string
}

// Types and affinities of rules.
const (
	HANodeAffinity     = "node-affinity"
	HAResourceAffinity = "resource-affinity"
	HANegative         = "negative"
)

// HARule is a rule for resources of HA.
type HARule struct {
	Name string
	Type string
	// Affinity of a resource affinity rule.
	Affinity string
	// Hosts of a node affinity rule.
	Hosts     []string
	Resources []string
	Comment   string
	Disabled  bool
	// Digest is that of all rules.
	Digest string
}

type haResourceRow struct {
	SID         string   `json:"sid"`
	State       string   `json:"state"`
	MaxRestart  *numeric `json:"max_restart"`
	MaxRelocate *numeric `json:"max_relocate"`
	Group       string   `json:"group"`
	Comment     string   `json:"comment"`
}

func (r haResourceRow) resource() HAResource {
	count := func(n *numeric) int {
		if n == nil {
			return 1
		}
		return int(n.whole())
	}
	return HAResource{ID: r.SID, State: r.State, MaxRestart: count(r.MaxRestart), MaxRelocate: count(r.MaxRelocate), Group: r.Group, Comment: r.Comment}
}

func (c haClient) HAResources(ctx context.Context) ([]HAResource, error) {
	var rows []haResourceRow
	if err := c.get(ctx, at("/cluster/ha/resources"), &rows); err != nil {
		return nil, fmt.Errorf("reading the HA resources: %w", err)
	}
	resources := make([]HAResource, 0, len(rows))
	for _, row := range rows {
		resources = append(resources, row.resource())
	}
	return resources, nil
}

func (c haClient) HAResource(ctx context.Context, vmid int) (HAResource, error) {
	var row haResourceRow
	if err := c.get(ctx, at("/cluster/ha/resources/{sid}", HAResourceID(vmid)), &row); err != nil {
		return HAResource{}, fmt.Errorf("reading VM %d in HA: %w", vmid, err)
	}
	return row.resource(), nil
}

// parameters returns the options for a release. HA must not move a VM that runs: its Node
// keeps the zone label of the Host that it was created on.
func (r HAResource) parameters(release Version) parameters {
	body := parameters{
		"state": r.State, "max_restart": strconv.Itoa(r.MaxRestart), "max_relocate": strconv.Itoa(r.MaxRelocate), "comment": r.Comment,
	}
	if release.AtLeast(9, 0) {
		body["failback"] = "0"
	}
	if release.AtLeast(9, 2) {
		body["auto-rebalance"] = "0"
	}
	if r.Group != "" {
		body["group"] = r.Group
	}
	return body
}

func (c haClient) AddHAResource(ctx context.Context, resource HAResource, release Version) error {
	body := resource.parameters(release)
	body["sid"] = resource.ID
	if err := c.post(ctx, at("/cluster/ha/resources"), body, nil); err != nil {
		return fmt.Errorf("adding %s to HA: %w", resource.ID, err)
	}
	return nil
}

func (c haClient) UpdateHAResource(ctx context.Context, resource HAResource, release Version) error {
	body := resource.parameters(release)
	if resource.Group == "" && !release.AtLeast(9, 0) {
		body["delete"] = "group"
	}
	if err := c.put(ctx, at("/cluster/ha/resources/{sid}", resource.ID), body); err != nil {
		return fmt.Errorf("changing %s in HA: %w", resource.ID, err)
	}
	return nil
}

func (c haClient) RemoveHAResource(ctx context.Context, vmid int) error {
	if err := c.remove(ctx, at("/cluster/ha/resources/{sid}", HAResourceID(vmid)), nil); err != nil {
		return fmt.Errorf("removing VM %d from HA: %w", vmid, err)
	}
	return nil
}

func (c haClient) HAGroups(ctx context.Context) ([]HAGroup, error) {
	var rows []struct{ Group, Nodes string }
	if err := c.get(ctx, at("/cluster/ha/groups"), &rows); err != nil {
		return nil, fmt.Errorf("reading the HA groups: %w", err)
	}
	groups := make([]HAGroup, 0, len(rows))
	for _, row := range rows {
		groups = append(groups, HAGroup{Name: row.Group, Hosts: parseHAHosts(row.Nodes)})
	}
	return groups, nil
}

// parseHAHosts parses "pve1:2,pve2", Hosts with optional priorities.
func parseHAHosts(list string) []string {
	var hosts []string
	for entry := range strings.SplitSeq(list, ",") {
		if host, _, _ := strings.Cut(strings.TrimSpace(entry), ":"); host != "" {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

func (c haClient) HARules(ctx context.Context) ([]HARule, error) {
	var rows []struct {
		Rule, Type, Affinity, Nodes, Resources, Comment, Digest string
		Disable                                                 numeric
	}
	if err := c.get(ctx, at("/cluster/ha/rules"), &rows); err != nil {
		return nil, fmt.Errorf("reading the HA rules: %w", err)
	}
	rules := make([]HARule, 0, len(rows))
	for _, row := range rows {
		rules = append(rules, HARule{
			Name: row.Rule, Type: row.Type, Affinity: row.Affinity, Hosts: parseHAHosts(row.Nodes), Comment: row.Comment, Disabled: row.Disable.isSet(), Digest: row.Digest,
			Resources: strings.FieldsFunc(row.Resources, func(r rune) bool { return r == ',' || r == ' ' }),
		})
	}
	return rules, nil
}

func (c haClient) CreateHARule(ctx context.Context, rule HARule) error {
	body := parameters{"rule": rule.Name, "type": rule.Type, "affinity": rule.Affinity, "resources": strings.Join(rule.Resources, ","), "comment": rule.Comment}
	if err := c.post(ctx, at("/cluster/ha/rules"), body, nil); err != nil {
		return fmt.Errorf("creating HA rule %s: %w", rule.Name, err)
	}
	return nil
}

func (c haClient) UpdateHARule(ctx context.Context, rule HARule) error {
	body := parameters{"type": rule.Type, "resources": strings.Join(rule.Resources, ","), "digest": rule.Digest}
	if err := c.put(ctx, at("/cluster/ha/rules/{rule}", rule.Name), body); err != nil {
		return fmt.Errorf("changing HA rule %s: %w", rule.Name, err)
	}
	return nil
}

func (c haClient) DeleteHARule(ctx context.Context, name string) error {
	if err := c.remove(ctx, at("/cluster/ha/rules/{rule}", name), nil); err != nil {
		return fmt.Errorf("deleting HA rule %s: %w", name, err)
	}
	return nil
}
