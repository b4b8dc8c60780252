// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/json"
	"fmt"
	"maps"
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
	mu    sync.Mutex
	rules []map[string]any
	// log contains the writes, in order.
	log     []string
	version int
	// foreign is called once before a delete, as a change by another user.
	foreign func(*fakeFirewall)
}

func (f *fakeFirewall) answer(r request) reply {
	f.mu.Lock()
	defer f.mu.Unlock()
	path, query, _ := strings.Cut(strings.TrimPrefix(r.uri, "/nodes/pve1/qemu/200/firewall/"), "?")
	if r.method != "GET" {
		f.log = append(f.log, r.method+" "+path)
	}
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
		f.log[len(f.log)-1] += " " + r.body
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
	accept := map[string]any{"type": "in", "action": "ACCEPT", "enable": 1}
	const enable, disable = `, PUT options {"enable":"1","policy_in":"DROP"}`, `PUT options {"enable":"0"}, `
	k8s := proxmox.SecurityGroupRule{Group: "k8s", Interface: "net0"}
	two := []proxmox.SecurityGroupRule{k8s, {Group: "storage", Interface: "net1"}}
	for name, test := range map[string]struct {
		have       []map[string]any
		want       []proxmox.SecurityGroupRule
		after, log string
		requests   int
	}{
		"no_rules": {nil, two, "group k8s net0, group storage net1", "POST rules, POST rules" + enable, 4},
		"all_rules": {[]map[string]any{group("storage", "net1", 1), accept, group("k8s", "net0", 1)}, two,
			"group storage net1, in ACCEPT , group k8s net0", enable[2:], 2},
		"other_repeated_and_disabled_rules": {[]map[string]any{
			group("old", "net0", 1), group("k8s", "net0", 1), accept, group("k8s", "net0", 1), group("storage", "net1", 0), group("k8s", "net1", 1),
		}, two, "group storage net1, group k8s net0, in ACCEPT ",
			"POST rules, DELETE rules/1, DELETE rules/3, DELETE rules/3, DELETE rules/3" + enable, 12},
		"concurrent_change": {[]map[string]any{group("old", "net0", 1), group("k8s", "net0", 1)}, []proxmox.SecurityGroupRule{k8s},
			"in ACCEPT , group k8s net0", "DELETE rules/0, DELETE rules/1" + enable, 7},
		"order": {[]map[string]any{group("old", "net0", 1)}, []proxmox.SecurityGroupRule{k8s},
			"group k8s net0", "POST rules, DELETE rules/1" + enable, 6},
		"without_groups": {[]map[string]any{accept, group("a", "net0", 1), group("b", "net0", 0)}, nil,
			"in ACCEPT ", disable + "DELETE rules/1, DELETE rules/1", 7},
		"firewall_of_another_user": {[]map[string]any{accept}, nil, "in ACCEPT ", "", 1},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			firewall := &fakeFirewall{}
			for _, rule := range test.have {
				firewall.rules = append(firewall.rules, maps.Clone(rule))
			}
			if name == "concurrent_change" {
				firewall.foreign = func(f *fakeFirewall) {
					f.rules = append([]map[string]any{maps.Clone(accept)}, f.rules...)
					f.version++
				}
			}
			c, host := clientOf(t, firewall.answer)
			g.Expect(c.SetFirewall(t.Context(), "pve1", 200, test.want)).To(Succeed())
			g.Expect(strings.Join(firewall.names(), ", ")).To(Equal(test.after))
			g.Expect(strings.Join(firewall.log, ", ")).To(Equal(test.log))
			g.Expect(host.requests()).To(HaveLen(test.requests))
		})
	}
}
