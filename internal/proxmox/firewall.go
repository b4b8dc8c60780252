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
// off, if groups were there, and then they go: closed to all, the VM would be lost.
func (c *client) SetFirewall(ctx context.Context, host string, vmid int, rules []SecurityGroupRule) error {
	have, err := c.firewallRules(ctx, host, vmid)
	if err != nil {
		return err
	}
	if len(rules) == 0 {
		if surplus, _ := compareRules(have, nil); surplus == nil {
			return nil
		}
		if err := c.setFirewallOptions(ctx, host, vmid, parameters{"enable": "0"}); err != nil {
			return err
		}
	}
	if err := c.setGroupRules(ctx, host, vmid, have, rules); err != nil {
		return fmt.Errorf("setting the security groups of VM %d on host %s, %w", vmid, host, err)
	}
	if len(rules) == 0 {
		return nil
	}
	return c.setFirewallOptions(ctx, host, vmid, parameters{"enable": "1", "policy_in": "DROP"})
}

func (c *client) setFirewallOptions(ctx context.Context, host string, vmid int, options parameters) error {
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

// setGroupRules adds what is missing, and then takes away what is too much, one at a
// time: positions move with every change, so that it reads again after each. The digest
// refuses a position that somebody else moved.
func (c *client) setGroupRules(ctx context.Context, host string, vmid int, have []firewallRule, want []SecurityGroupRule) error {
	surplus, missing := compareRules(have, want)
	if err := c.addGroupRules(ctx, host, vmid, missing); err != nil {
		return err
	}
	for tries := 0; surplus != nil; {
		have, err := c.firewallRules(ctx, host, vmid)
		if err != nil {
			return err
		}
		if surplus, _ = compareRules(have, want); surplus == nil {
			return nil
		}
		e := at("/nodes/{node}/qemu/{vmid}/firewall/rules/{pos}", host, vmid, int(surplus.Pos)).with("digest", surplus.Digest)
		err = c.delete(ctx, e, nil)
		if errors.Is(err, ErrConflict) && tries < firewallTries {
			tries++
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *client) firewallRules(ctx context.Context, host string, vmid int) ([]firewallRule, error) {
	var have []firewallRule
	if err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/firewall/rules", host, vmid), &have); err != nil {
		return nil, fmt.Errorf("reading the firewall rules of VM %d on host %s, %w", vmid, host, err)
	}
	return have, nil
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
// included), and the wanted ones that are missing.
func compareRules(have []firewallRule, want []SecurityGroupRule) (surplus *firewallRule, missing []SecurityGroupRule) {
	missing = slices.Clone(want)
	for _, rule := range have {
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
