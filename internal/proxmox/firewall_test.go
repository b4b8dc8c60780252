// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// fakeFirewall behaves like a VM's firewall: it inserts new rules at the top and
// refuses a stale digest.
type fakeFirewall struct {
	mu      sync.Mutex
	rules   []map[string]any
	options string
	// log contains the writes, in order.
	log     []string
	version int
	// foreign is called once before a delete, as a change by another user.
	foreign func(*fakeFirewall)
}

func (f *fakeFirewall) answer(r request) reply {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.method != "GET" {
		f.log = append(f.log, r.method+" "+strings.TrimPrefix(strings.Split(r.uri, "?")[0], "/nodes/pve1/qemu/200/firewall/"))
	}
	path, query, _ := strings.Cut(strings.TrimPrefix(r.uri, "/nodes/pve1/qemu/200/firewall/"), "?")
	switch {
	case r.method == "GET" && path == "rules":
		for i, rule := range f.rules {
			rule["pos"], rule["digest"] = i, fmt.Sprint("d", f.version)
		}
		text, _ := json.Marshal(f.rules)
		return data(string(text))
	case r.method == "POST" && path == "rules":
		var rule map[string]any
		_ = json.Unmarshal([]byte(r.body), &rule)
		rule["enable"], _ = strconv.Atoi(rule["enable"].(string))
		f.rules = append([]map[string]any{rule}, f.rules...)
	case r.method == "DELETE":
		if f.foreign != nil {
			f.foreign(f)
			f.foreign = nil
		}
		if query != fmt.Sprint("digest=d", f.version) {
			return failed(500, "detected modified configuration - file changed by other user? Try again.")
		}
		pos, _ := strconv.Atoi(strings.TrimPrefix(path, "rules/"))
		f.rules = append(f.rules[:pos:pos], f.rules[pos+1:]...)
	case r.method == "PUT" && path == "options":
		f.options = r.body
		return data(`null`)
	default:
		return failed(501, "Method not implemented")
	}
	f.version++
	return data(`null`)
}

func (f *fakeFirewall) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := []string{}
	for _, rule := range f.rules {
		iface, _ := rule["iface"].(string)
		names = append(names, fmt.Sprintf("%v %v %s", rule["type"], rule["action"], iface))
	}
	return names
}

func group(name, iface string, enable int) map[string]any {
	return map[string]any{"type": "group", "action": name, "iface": iface, "enable": enable}
}

func TestSetFirewall(t *testing.T) {
	t.Parallel()
	want := []proxmox.SecurityGroupRule{{Group: "k8s", Interface: "net0"}, {Group: "storage", Interface: "net1"}}
	accept := func() map[string]any { return map[string]any{"type": "in", "action": "ACCEPT", "enable": 1} }
	for name, test := range map[string]struct {
		have  []map[string]any
		after []string
		calls int
	}{
		"no_rules": {after: []string{"group k8s net0", "group storage net1"}, calls: 4},
		"all_rules": {
			have:  []map[string]any{group("storage", "net1", 1), accept(), group("k8s", "net0", 1)},
			after: []string{"group storage net1", "in ACCEPT ", "group k8s net0"}, calls: 2,
		},
		"other_repeated_and_disabled_rules": {
			have: []map[string]any{
				group("old", "net0", 1), group("k8s", "net0", 1), accept(), group("k8s", "net0", 1),
				group("storage", "net1", 0), group("k8s", "net1", 1),
			},
			after: []string{"group storage net1", "group k8s net0", "in ACCEPT "}, calls: 12,
		},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			firewall := &fakeFirewall{rules: test.have}
			c, host := clientOf(t, firewall.answer)
			g.Expect(c.SetFirewall(t.Context(), "pve1", 200, want)).To(Succeed())
			g.Expect(firewall.names()).To(Equal(test.after))
			g.Expect(firewall.options).To(MatchJSON(`{"enable":"1","policy_in":"DROP"}`))
			g.Expect(host.requests()).To(HaveLen(test.calls))
		})
	}
}

func TestSetFirewallConcurrentChange(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		firewall := &fakeFirewall{
			rules: []map[string]any{group("old", "net0", 1), group("k8s", "net0", 1)},
			foreign: func(f *fakeFirewall) {
				f.rules = append([]map[string]any{{"type": "in", "action": "ACCEPT", "enable": 1}}, f.rules...)
				f.version++
			},
		}
		c, _ := clientOf(t, firewall.answer)
		g.Expect(c.SetFirewall(t.Context(), "pve1", 200, []proxmox.SecurityGroupRule{{Group: "k8s", Interface: "net0"}})).To(Succeed())
		g.Expect(firewall.names()).To(Equal([]string{"in ACCEPT ", "group k8s net0"}))
	})
}

func TestSetFirewallOrder(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		firewall := &fakeFirewall{rules: []map[string]any{group("old", "net0", 1)}}
		c, _ := clientOf(t, firewall.answer)
		g.Expect(c.SetFirewall(t.Context(), "pve1", 200, []proxmox.SecurityGroupRule{{Group: "new", Interface: "net0"}})).To(Succeed())
		g.Expect(firewall.names()).To(Equal([]string{"group new net0"}))
		g.Expect(firewall.log).To(Equal([]string{"POST rules", "DELETE rules/1", "PUT options"}))
	})
}

func TestSetFirewallWithoutGroups(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		firewall := &fakeFirewall{rules: []map[string]any{{"type": "in", "action": "ACCEPT", "enable": 1}, group("a", "net0", 1), group("b", "net0", 0)}}
		c, _ := clientOf(t, firewall.answer)
		g.Expect(c.SetFirewall(t.Context(), "pve1", 200, nil)).To(Succeed())
		g.Expect(firewall.names()).To(Equal([]string{"in ACCEPT "}))
		g.Expect(firewall.options).To(MatchJSON(`{"enable":"0"}`))
		g.Expect(firewall.log[0]).To(Equal("PUT options"))

		// A firewall without groups, configured by another user, is not changed.
		firewall.log = nil
		g.Expect(c.SetFirewall(t.Context(), "pve1", 200, nil)).To(Succeed())
		g.Expect(firewall.log).To(BeEmpty())
	})
}
