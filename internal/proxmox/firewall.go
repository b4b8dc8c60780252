// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// SetFirewall turns the VM's firewall on and makes its security-group rules
// exactly these. Rules that are no group's stay as they are. On a running VM
// the rules stand before the firewall does. Without rules the firewall is turned
// off again, if groups were there: closed to all, the VM would be lost.
func (c *client) SetFirewall(ctx context.Context, host string, vmid int, rules []SecurityGroupRule) error {
	removed, err := c.setGroupRules(ctx, host, vmid, rules)
	if err != nil {
		return fmt.Errorf("setting the security groups of VM %d on host %s, %w", vmid, host, err)
	}
	options := parameters{"enable": "1", "policy_in": "DROP"}
	if len(rules) == 0 {
		if removed == 0 {
			return nil
		}
		options = parameters{"enable": "0"}
	}
	if err := c.put(ctx, at("/nodes/{node}/qemu/{vmid}/firewall/options", host, vmid), options, nil); err != nil {
		return fmt.Errorf("switching the firewall of VM %d on host %s, %w", vmid, host, err)
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

// firewallTries bounds how often somebody else's edit makes us look again.
const firewallTries = 5

// setGroupRules reads, changes one thing, and reads again, since positions move
// with every change; the digest refuses a position that somebody else moved.
func (c *client) setGroupRules(ctx context.Context, host string, vmid int, want []SecurityGroupRule) (removed int, err error) {
	conflicts := 0
	for {
		var have []firewallRule
		if err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/firewall/rules", host, vmid), &have); err != nil {
			return removed, err
		}
		surplus, missing := compareRules(have, want)
		if surplus == nil {
			return removed, c.addGroupRules(ctx, host, vmid, missing)
		}
		e := at("/nodes/{node}/qemu/{vmid}/firewall/rules/{pos}", host, vmid, int(surplus.Pos)).with("digest", surplus.Digest)
		err := c.delete(ctx, e, nil)
		if errors.Is(err, ErrConflict) && conflicts < firewallTries {
			conflicts++
			continue
		}
		if err != nil {
			return removed, err
		}
		removed++
	}
}

// addGroupRules adds from the last to the first: Proxmox puts a new rule on top.
func (c *client) addGroupRules(ctx context.Context, host string, vmid int, rules []SecurityGroupRule) error {
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

// compareRules names one group rule too many (disabled ones and repetitions
// included), or else the wanted ones that are missing.
func compareRules(have []firewallRule, want []SecurityGroupRule) (surplus *firewallRule, missing []SecurityGroupRule) {
	left := slices.Clone(want)
	for _, rule := range have {
		if rule.Type != "group" {
			continue
		}
		i := slices.Index(left, SecurityGroupRule{Group: rule.Action, Interface: rule.Iface})
		if i < 0 || !rule.Enable.isSet() {
			return &rule, nil
		}
		left = slices.Delete(left, i, i+1)
	}
	return nil, left
}
