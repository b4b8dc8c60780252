// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// SecurityGroupRule applies a firewall group to an interface of a VM.
type SecurityGroupRule struct {
	Group     string
	Interface string // net0
}

func (c networkClient) SecurityGroupRules(ctx context.Context, host string, vmid int) ([]SecurityGroupRule, error) {
	existing, err := c.firewallRules(ctx, host, vmid)
	var rules []SecurityGroupRule
	for _, rule := range existing {
		if rule.Type == "group" {
			rules = append(rules, SecurityGroupRule{Group: rule.Action, Interface: rule.Iface})
		}
	}
	return rules, err
}

// SetFirewall leaves rules that are not a group's unchanged. It sets the rules before
// it enables the firewall, and disables the firewall before it removes the last
// group: with a firewall that drops everything a running VM would be unreachable.
func (c networkClient) SetFirewall(ctx context.Context, host string, vmid int, rules []SecurityGroupRule) error {
	existing, err := c.firewallRules(ctx, host, vmid)
	if err != nil {
		return err
	}
	if len(rules) == 0 {
		if surplus, _ := compareRules(existing, nil); surplus == nil {
			return nil
		}
		if err := c.setFirewallOptions(ctx, host, vmid, parameters{"enable": "0"}); err != nil {
			return err
		}
	}
	if err := c.setGroupRules(ctx, host, vmid, existing, rules); err != nil {
		return fmt.Errorf("setting the security groups of VM %d on host %s: %w", vmid, host, err)
	}
	if len(rules) == 0 {
		return nil
	}
	return c.setFirewallOptions(ctx, host, vmid, parameters{"enable": "1", "policy_in": "DROP"})
}

func (c networkClient) setFirewallOptions(ctx context.Context, host string, vmid int, options parameters) error {
	if err := c.put(ctx, at("/nodes/{node}/qemu/{vmid}/firewall/options", host, vmid), options); err != nil {
		return fmt.Errorf("setting the firewall options of VM %d on host %s: %w", vmid, host, err)
	}
	return nil
}

type firewallRule struct {
	Type   string  `json:"type"`
	Action string  `json:"action"`
	Iface  string  `json:"iface"`
	Pos    numeric `json:"pos"`
	Enable numeric `json:"enable"`
	Digest string  `json:"digest"`
}

// firewallRetries limits the retries after concurrent changes by another user.
const firewallRetries = 5

// setGroupRules adds the missing rules and then deletes the surplus ones, one at a
// time: positions shift with every change, so it reads the rules before each delete.
// The digest makes Proxmox refuse a position that has shifted since.
func (c networkClient) setGroupRules(ctx context.Context, host string, vmid int, existing []firewallRule, desired []SecurityGroupRule) error {
	surplus, missing := compareRules(existing, desired)
	if err := c.addGroupRules(ctx, host, vmid, missing); err != nil {
		return err
	}
	for retries := 0; surplus != nil; {
		existing, err := c.firewallRules(ctx, host, vmid)
		if err != nil {
			return err
		}
		if surplus, _ = compareRules(existing, desired); surplus == nil {
			return nil
		}
		e := at("/nodes/{node}/qemu/{vmid}/firewall/rules/{pos}", host, vmid, int(surplus.Pos)).with("digest", surplus.Digest)
		err = c.remove(ctx, e, nil)
		if errors.Is(err, ErrConflict) && retries < firewallRetries {
			retries++
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c networkClient) firewallRules(ctx context.Context, host string, vmid int) ([]firewallRule, error) {
	var rules []firewallRule
	if err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/firewall/rules", host, vmid), &rules); err != nil {
		return nil, fmt.Errorf("reading the firewall rules of VM %d on host %s: %w", vmid, host, err)
	}
	return rules, nil
}

// addGroupRules adds the rules from last to first: Proxmox inserts a new rule at the top.
func (c networkClient) addGroupRules(ctx context.Context, host string, vmid int, rules []SecurityGroupRule) error {
	for _, rule := range slices.Backward(rules) {
		body := parameters{"type": "group", "action": rule.Group, "enable": "1"}
		if rule.Interface != "" {
			body["iface"] = rule.Interface
		}
		if err := c.post(ctx, at("/nodes/{node}/qemu/{vmid}/firewall/rules", host, vmid), body, nil); err != nil {
			return err
		}
	}
	return nil
}

// compareRules returns the first surplus group rule, which may also be a disabled or
// repeated one, and the desired rules that are missing.
func compareRules(existing []firewallRule, desired []SecurityGroupRule) (surplus *firewallRule, missing []SecurityGroupRule) {
	missing = slices.Clone(desired)
	for _, rule := range existing {
		if rule.Type != "group" {
			continue
		}
		i := slices.Index(missing, SecurityGroupRule{Group: rule.Action, Interface: rule.Iface})
		switch {
		case i >= 0 && rule.Enable.isSet():
			missing = slices.Delete(missing, i, i+1)
		case surplus == nil:
			surplus = &rule
		}
	}
	return surplus, missing
}
